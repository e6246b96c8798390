"""Writes docs/config.md: every config key with type, default, unit and meaning.

Run by hand after changing a key: `.venv/bin/python scripts/config_docs.py > docs/config.md`.
A test compares the page with what this prints.
"""

from __future__ import annotations

from dvi.cli.help import group_options
from dvi.cli.table import COMMANDS
from dvi.config.schema import Leaf, groups, leaves

HEAD = """\
# Config keys

Made by `scripts/config_docs.py` from the dataclasses of `dvi/config`. `dvi COMMAND --help` prints
the keys of one command; `dvi COMMAND --cfg job` prints what a command would use.

A key is set by `key=value` after the command, or in a YAML file of your own (`--config-dir DIR
--config-name NAME`, first line `defaults: [config, _self_]`; see `deploy/examples/`). Unknown keys
and values outside the range are refused with exit status 2. Sizes end in `_bytes`, times in `_s`,
lengths count tokens. `null` is no value."""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(leaf: Leaf) -> str:
    kind = f"{leaf.kind.__name__} or null" if leaf.optional else leaf.kind.__name__
    notes = "; ".join(note for note in (leaf.unit, leaf.allowed_text) if note)
    cells = (f"`{leaf.key}`", kind, f"`{leaf.default_text}`", notes, leaf.meaning)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _users(section: str) -> str:
    names = [f"`dvi {command.name}`" for command in COMMANDS if section in command.sections]
    return f"Read by {', '.join(names)}." if names else ""


def _section(name: str, rows: list[Leaf]) -> list[str]:
    lines = ["", f"## {name}", ""]
    options = group_options(name)
    if len(options) > 1:
        presets = ", ".join(f"`{name}={option}`" for option in options)
        lines += [f"Presets: {presets}.", ""]
    if users := _users(name):
        lines += [users, ""]
    lines += ["| key | type | default | unit, allowed | meaning |", "|---|---|---|---|---|"]
    return lines + [_row(leaf) for leaf in rows]


def main() -> None:
    """Print the page."""
    print(HEAD)
    alone = [leaf for leaf in leaves() if "." not in leaf.key]
    for line in _section("root", alone):
        print(line)
    for group in groups():
        for line in _section(group, [key for key in leaves() if key.key.startswith(f"{group}.")]):
            print(line)
    experiments = ", ".join(f"`+experiment={name}`" for name in group_options("experiment"))
    print(f"\n## experiment\n\nPresets that set several groups at once: {experiments}.")


if __name__ == "__main__":
    main()
