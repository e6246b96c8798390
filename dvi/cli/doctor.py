"""`dvi doctor`.

Owns the exit status; imports torch only with --deep.
"""

from __future__ import annotations

from dvi.cli.app import config_of
from dvi.cli.args import Words
from dvi.cli.out import print_json
from dvi.cli.table import Command
from dvi.doctor.finding import Level
from dvi.doctor.main import as_rows, examine, examine_deeply, lines


def run(words: Words, command: Command) -> int:
    """Check the installation; 1 if there is a fault."""
    config = config_of(words, command)
    findings = examine(config)
    if "--deep" in words.flags:
        findings.append(examine_deeply(config))
    if "--json" in words.flags:
        print_json(as_rows(findings))
    else:
        print("\n".join(lines(findings)))
    return 1 if any(one.level is Level.FAULT for one in findings) else 0
