"""Dispatch, and the one place where an exception becomes an exit status and one line.

Owns exit statuses; knows no command but through the table.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys

from dvi.cli.args import sort_words
from dvi.cli.help import command_help, overview
from dvi.cli.table import BY_NAME, Command
from dvi.config.secrets import mask

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def _say(text: str) -> None:
    """One line on stderr, secrets masked."""
    print(mask(f"dvi: {' '.join(text.split())}"), file=sys.stderr)


def _run_command(command: Command, arguments: list[str]) -> int:
    words = sort_words(arguments, command)
    status = importlib.import_module(command.module).run(words, command)
    assert isinstance(status, int)
    return status


def shows_tracebacks() -> bool:
    """Whether the user asked for tracebacks the way Hydra users do."""
    return os.environ.get("HYDRA_FULL_ERROR", "0") not in ("", "0")


def report_uncaught(kind: type[BaseException], error: BaseException, _: object) -> None:
    """What `sys.excepthook` does for `dvi`: one line instead of a traceback."""
    _say(f"{kind.__name__}: {error} (HYDRA_FULL_ERROR=1 shows where)")


def _guarded(command: Command, arguments: list[str]) -> int:
    """Run a command; ValueError is the user's (2), OSError is a failure (1), the rest passes.

    BrokenPipeError passes too: it says nothing about the command.
    """
    if shows_tracebacks():
        return _run_command(command, arguments)
    try:
        return _run_command(command, arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except ValueError as error:
        _say(str(error))
        return WRONG
    except BrokenPipeError:
        raise
    except OSError as error:
        _say(str(error))
        return FAILED


def run(arguments: list[str]) -> int:
    """Run `dvi` with these words and return the exit status.

    Where the reader of a pipe goes away (`dvi ... | head -1`) nothing more can be said: 1, or 0 for
    a help text, of which everything was said that was wanted.
    """
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()  # else the interpreter does at its end, and complains there
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE if _wants_text(arguments) else FAILED
    return status


def _wants_text(arguments: list[str]) -> bool:
    return not {"--help", "-h", "help", "--version", "completion"}.isdisjoint(arguments)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(overview())
        return DONE if arguments else WRONG
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        from dvi import __version__

        print(f"dvi {__version__}")
        return DONE
    if name == "_complete":
        from dvi.cli.completion import print_candidates

        return print_candidates(rest)
    command = BY_NAME.get(name)
    if command is None:
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        hint = f"did you mean `dvi {near[0]}`?" if near else "see dvi --help"
        _say(f"no command {name!r}: {hint}")
        return WRONG
    if "--help" in rest or "-h" in rest:
        print(command_help(command))
        return DONE
    return _guarded(command, rest)
