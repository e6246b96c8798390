"""Help texts, made from the table of commands and the config's own metadata.

Owns the layout; knows no key by name.
"""

from __future__ import annotations

import textwrap

from dvi.cli.table import COMMANDS, Command
from dvi.config.home import conf_dir
from dvi.config.schema import Leaf, groups, leaves

_FLAG_MEANING = {
    "--cfg": "job|hydra|all: print the composed config instead of running",
    "--info": "defaults|defaults-tree|searchpath|plugins|config|all: how it was composed",
    "--config-dir": "folder with configs of your own",
    "--config-name": "primary config in that folder (first line: defaults: [config, _self_])",
    "--package": "with --cfg: print only this part",
    "--resolve": "with --cfg: resolve interpolations",
    "--multirun": "run a sweep: key=a,b,c",
    "--to": "with export: the folder to write, new or empty; of replay a new Parquet file",
    "--redact": "with export: counts a round only, no content; alpha comes out the same",
    "--layers": "with draft: which layers of the model are kept, in this order",
    "--peft": "with export: the untrained model as base/ and the adapter on it as adapter/",
    "--before": "rows stored before a date, a time, or an age (2026-01-31, 36h, 30d)",
    "--request": "rows of this request id, as the response's id or X-Request-Id says",
    "--user": "rows of this `user` field",
    "--dry-run": "count only",
    "--yes": "do not ask",
    "--deep": "read the model and render its template too: imports torch, seconds",
    "--json": "print JSON instead of a table",
    "--help": "print this",
}


def group_options(group: str) -> list[str]:
    """Presets of a config group: the names of its files."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def overview() -> str:
    """What `dvi --help` prints."""
    lines = ["usage: dvi COMMAND [key=value ...]", "", "commands:"]
    lines += [f"  {command.name:<12}{command.meaning}" for command in COMMANDS]
    lines += [
        "",
        "  dvi COMMAND --help   keys of a command, with meaning, unit and default",
        "  dvi --version        this program's version",
        "",
        "DVI_HOME holds models, state, runs, demo and bench. DVI_API_KEY and DVI_REPLAY_URL",
        "carry secrets. Exit status: 0 done, 1 failed, 2 wrong usage or config, 130 Ctrl-C.",
    ]
    return "\n".join(lines)


def _key_lines(leaf: Leaf) -> list[str]:
    notes = [leaf.unit, leaf.allowed_text]
    note = "; ".join(part for part in notes if part)
    meaning = f"{leaf.meaning} [{note}]" if note else leaf.meaning
    head = f"  {leaf.key}={leaf.default_text}"
    wrapped = textwrap.wrap(meaning, width=58)
    if len(head) > 40:
        return [head, *(" " * 42 + line for line in wrapped)]
    return [f"{head:<42}{wrapped[0]}", *(" " * 42 + line for line in wrapped[1:])]


def _section_lines(section: str) -> list[str]:
    lines = []
    options = group_options(section) if section in groups() else []
    if len(options) > 1:
        lines.append(f"{section}=NAME picks a preset: {', '.join(options)}")
    for leaf in leaves():
        if leaf.key == section or leaf.key.startswith(f"{section}."):
            lines += _key_lines(leaf)
    return lines


def command_help(command: Command) -> str:
    """What `dvi COMMAND --help` prints."""
    lines = [f"usage: {command.usage}", "", command.meaning, "", "flags:"]
    lines += [f"  {flag:<16}{_FLAG_MEANING[flag]}" for flag in command.all_flags]
    if command.sections:
        lines += ["", "keys (shown with their defaults):"]
    for section in command.sections:
        lines += ["", *_section_lines(section)] if section in groups() else _section_lines(section)
    if command.is_app:
        presets = ", ".join(group_options("experiment"))
        lines += ["", f"+experiment=NAME sets several groups at once: {presets}"]
    return "\n".join(lines)
