"""Reads the words after a command: flags, overrides, one bare word.

Owns usage errors; does not check config keys, which the launch does.
"""

from __future__ import annotations

import difflib
from collections import deque
from dataclasses import dataclass, field

from dvi.cli.table import Command
from dvi.config.schema import leaves
from dvi.launch.request import LaunchRequest, quoted

_WITH_VALUE = (
    "--cfg",
    "--config-dir",
    "--config-name",
    "--package",
    "--before",
    "--request",
    "--user",
    "--to",
    "--layers",
)
_SHORT = {
    "-c": "--cfg",
    "-i": "--info",
    "-cd": "--config-dir",
    "-cn": "--config-name",
    "-p": "--package",
    "-m": "--multirun",
    "-h": "--help",
}
_CFG_CHOICES = ("job", "hydra", "all")
_INFO_CHOICES = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


class UsageError(ValueError):
    """A command line that cannot be read; the message is one line for the user."""


@dataclass(slots=True)
class Words:
    """The words after a command, sorted."""

    flags: dict[str, str] = field(default_factory=dict)
    bare: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)


def _unknown_flag(flag: str, value: str | None, command: Command) -> UsageError:
    name = flag.lstrip("-").replace("-", "_")
    shown = value or "VALUE"
    keys = [leaf.key for leaf in leaves() if leaf.key.split(".")[0] in command.sections]
    exact = [key for key in keys if key.rsplit(".", 1)[-1] == name or key == name]
    if exact:
        preferred = next((key for key in exact if key.startswith("serving.")), exact[0])
        return UsageError(f"no flag {flag}: write {preferred}={shown}")
    near = difflib.get_close_matches(flag, command.all_flags, n=1)
    hint = f"did you mean {near[0]}?" if near else f"see dvi {command.name} --help"
    return UsageError(f"no flag {flag}: {hint}")


def _is_override(word: str) -> bool:
    return word.startswith("~") or "=" in word


def _flag_value(flag: str, given: str | None, words: deque[str]) -> str:
    """The value of a known flag; takes it from the words where it is not behind `=`."""
    if given is not None:
        return given
    if flag == "--info":  # its value may be left out, as in Hydra
        return words.popleft() if words and words[0] in _INFO_CHOICES else "all"
    if flag not in _WITH_VALUE:
        return ""
    if not words:
        raise UsageError(f"{flag} needs a value")
    return words.popleft()


def sort_words(arguments: list[str], command: Command) -> Words:
    """Sort the arguments of a command. Raises UsageError for a flag it does not have."""
    found = Words()
    words = deque(arguments)
    while words:
        word = words.popleft()
        if not word.startswith("-") or word == "-":
            (found.overrides if _is_override(word) else found.bare).append(word)
            continue
        name, equals, value = word.partition("=")
        given = value if equals else None
        flag = _SHORT.get(name, name)
        if flag not in command.all_flags:
            raise _unknown_flag(flag, given or (words[0] if words else None), command)
        found.flags[flag] = _flag_value(flag, given, words)
    return found


def _choice(flag: str, value: str | None, choices: tuple[str, ...]) -> str | None:
    if value is not None and value not in choices:
        raise UsageError(f"{flag} takes one of {', '.join(choices)}; got {value!r}")
    return value


def launch_request(words: Words, command: Command) -> LaunchRequest:
    """The request of a command that composes a config. Raises UsageError for a stray word."""
    bare = list(words.bare)
    overrides = list(words.overrides)
    if command.takes_model and bare:
        overrides.insert(0, f"model.path={quoted(bare.pop(0))}")
    if bare:
        raise UsageError(f"what is {bare[0]!r}? usage: {command.usage}")
    flags = words.flags
    return LaunchRequest(
        command=command.name,
        overrides=tuple(overrides),
        config_dir=flags.get("--config-dir"),
        config_name=flags.get("--config-name", "config"),
        show_config=_choice("--cfg", flags.get("--cfg"), _CFG_CHOICES),
        package=flags.get("--package"),
        resolve="--resolve" in flags,
        show_info=_choice("--info", flags.get("--info"), _INFO_CHOICES),
        multirun="--multirun" in flags,
    )


def take_action(words: Words, command: Command) -> str:
    """Remove and return the first bare word, which must be one of the command's actions."""
    if not words.bare:
        raise UsageError(f"dvi {command.name} needs one of: {', '.join(command.actions)}")
    action = words.bare.pop(0)
    if action not in command.actions:
        near = difflib.get_close_matches(action, command.actions, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(command.actions)}"
        raise UsageError(f"dvi {command.name} has no `{action}`: {hint}")
    return action
