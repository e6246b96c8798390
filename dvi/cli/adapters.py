"""`dvi adapters`: the registry from the command line, with or without a running server.

Owns the rows it prints; the server notices a promotion by itself. Export is in export.py.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from dvi.cli.app import config_with_state
from dvi.cli.args import UsageError, Words, take_action
from dvi.cli.out import Cell, print_json, print_table
from dvi.cli.table import Command
from dvi.config.home import adapters_dir
from dvi.registry import Manifest, Registry


def _row(manifest: Manifest, current: int) -> dict[str, Cell]:
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created_s))
    return {
        "version": manifest.version,
        "live": "live" if manifest.version == current else "",
        "parent": manifest.parent,
        "drafter": manifest.drafter.kind,
        "exit_layer": manifest.drafter.exit_layer,
        "step": manifest.checkpoint_step,
        "rows": manifest.rows_trained,
        "created": created,
        **dict(sorted(manifest.metrics.items())),
    }


def _same_columns(rows: list[dict[str, Cell]]) -> list[dict[str, Cell]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _nothing_yet(root: Path) -> bool:
    if root.is_dir():
        return False
    print(f"no adapters in {root} yet: `dvi serve` writes them", file=sys.stderr)
    return True


def _list(registry: Registry, as_json: bool) -> int:
    empty = _nothing_yet(registry.root)
    manifests = [] if empty else registry.versions()
    current = 0 if empty else registry.current()
    if as_json:
        versions = [dataclasses.asdict(manifest) for manifest in manifests]
        print_json({"current": current, "versions": versions})
        return 0
    print_table(_same_columns([_row(manifest, current) for manifest in manifests]))
    if not empty:
        name = f"version {current}" if current else "version 0 (the untrained draft)"
        print(f"in service: {name}")
    return 0


def _show(registry: Registry, version: int, as_json: bool) -> int:
    if version == 0:
        raise UsageError("version 0 is the untrained draft: it has no files")
    manifest = registry.manifest(version)
    if as_json:
        print_json(dataclasses.asdict(manifest))
        return 0
    for name, value in dataclasses.asdict(manifest).items():
        print(f"{name:<18}{value}")
    return 0


def _version(bare: list[str], action: str) -> int:
    if len(bare) != 1 or not bare[0].isdecimal():
        raise UsageError(f"usage: dvi adapters {action} N, with N a version of `dvi adapters list`")
    return int(bare.pop())


def run(words: Words, command: Command) -> int:
    """Run one action on the registry of the config."""
    action = take_action(words, command)
    version = _version(words.bare, action) if action in ("show", "promote", "export") else 0
    if action != "export" and {"--to", "--peft"} & words.flags.keys():
        raise UsageError("--to and --peft belong to `dvi adapters export N --to DIR`")
    config = config_with_state(words, command)
    registry = Registry(adapters_dir(config), config.registry.keep_versions)
    as_json = "--json" in words.flags
    if action == "list":
        return _list(registry, as_json)
    if action == "show":
        return _show(registry, version, as_json)
    if action == "export":
        from dvi.cli.export import export_version  # torch: seconds that no other action needs

        return export_version(config, version, words.flags)
    if not registry.root.is_dir():
        raise UsageError(f"no adapters in {registry.root} yet: nothing to {action}")
    if action == "promote":
        registry.promote(version, "by hand")
    else:
        version = registry.rollback("by hand")
    if as_json:
        print_json({"current": version})
    else:
        print(f"in service: version {version}")
    return 0
