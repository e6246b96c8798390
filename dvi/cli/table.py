"""The commands: name, one line, shape of their arguments, and the module that runs them.

The single source of dispatch, help and completion; imports none of the command modules.
"""

from __future__ import annotations

from dataclasses import dataclass

HYDRA_FLAGS = ("--cfg", "--info", "--config-dir", "--config-name", "--package", "--resolve")
PLAIN_FLAGS = ("--config-dir", "--config-name")

_STATE = ("state_dir", "registry")
_ENGINE = ("state_dir", "model", "drafter", "decoding")


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. ``sections`` are the config groups it reads, in the order of its help."""

    name: str
    meaning: str
    usage: str
    module: str  # has run(words: Words, command: Command) -> int
    sections: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()  # first word after the command
    flags: tuple[str, ...] = ()
    is_app: bool = False  # a Hydra application: runs in a run folder
    takes_model: bool = False  # one bare word is model.path

    @property
    def all_flags(self) -> tuple[str, ...]:
        """Flags in the order of the help."""
        hydra = HYDRA_FLAGS if self.is_app else PLAIN_FLAGS if self.sections else ()
        return (*self.flags, *hydra, "--help")


COMMANDS = (
    Command(
        "serve",
        "OpenAI-compatible server and its background trainer",
        "dvi serve [MODEL] [key=value ...]",
        "dvi.cli.apps",
        sections=(
            *_ENGINE,
            "serving",
            "replay",
            "trainer",
            "objective",
            "registry",
            "drift",
            "tracking",
            "run",
        ),
        is_app=True,
        takes_model=True,
    ),
    Command(
        "train",
        "train the draft on stored traffic and publish one candidate version",
        "dvi train [MODEL] [key=value ...]",
        "dvi.cli.train",
        sections=(
            *_ENGINE,
            "data",
            "objective",
            "trainer",
            "replay",
            "registry",
            "tracking",
            "run",
        ),
        flags=("--multirun",),
        is_app=True,
        takes_model=True,
    ),
    Command(
        "bench",
        "side-by-side speed: plain decoding, every draft, peers; checked before it is shown",
        "dvi bench [MODEL] [key=value ...] [--json]",
        "dvi.cli.apps",
        sections=("bench", *_ENGINE, "replay", "tracking", "run"),
        flags=("--multirun", "--json"),
        is_app=True,
        takes_model=True,
    ),
    Command(
        "audit",
        "decode stored answers again without speculation and compare token by token",
        "dvi audit [MODEL] [key=value ...] [--json]",
        "dvi.cli.apps",
        sections=("audit", *_ENGINE, "serving", "replay", "registry", "run"),
        flags=("--json",),
        is_app=True,
        takes_model=True,
    ),
    Command(
        "demo",
        "serve a real model, send a drifting stream, check every answer, draw the picture",
        "dvi demo [key=value ...] [--json]",
        "dvi.cli.apps",
        sections=("demo", *_ENGINE, "trainer", "objective", "run"),
        flags=("--json",),
        is_app=True,
    ),
    Command(
        "adapters",
        "the adapter registry, with or without a running server",
        "dvi adapters list|show N|promote N|rollback|export N --to DIR [--json] [key=value ...]",
        "dvi.cli.adapters",
        sections=(*_STATE, "model", "drafter"),
        actions=("list", "show", "promote", "rollback", "export"),
        flags=("--json", "--to", "--peft"),
    ),
    Command(
        "replay",
        "the replay store",
        "dvi replay stats | export --to FILE.parquet [--redact]"
        " | purge --before|--request|--user VALUE [--dry-run] [--yes] [--json]",
        "dvi.cli.replay",
        sections=("state_dir", "replay"),
        actions=("stats", "export", "purge"),
        flags=(
            "--to",
            "--redact",
            "--before",
            "--request",
            "--user",
            "--dry-run",
            "--yes",
            "--json",
        ),
    ),
    Command(
        "doctor",
        "check the installation and say what mends each fault",
        "dvi doctor [MODEL] [--deep] [--json] [key=value ...]",
        "dvi.cli.doctor",
        sections=("state_dir", "model", "drafter", "serving", "replay", "registry", "tracking"),
        flags=("--deep", "--json"),
        takes_model=True,
    ),
    Command(
        "models",
        "models that need no hub, and draft models made from them",
        "dvi models list [--json] | fetch NAME | draft DIR --layers 0,1 [MODEL]",
        "dvi.cli.models",
        actions=("list", "fetch", "draft"),
        flags=("--json", "--layers"),
    ),
    Command(
        "completion",
        "print the completion script of a shell",
        "dvi completion bash|zsh|fish",
        "dvi.cli.completion",
        actions=("bash", "zsh", "fish"),
    ),
)

BY_NAME = {command.name: command for command in COMMANDS}
