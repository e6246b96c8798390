"""Log lines: one line each, on stderr and in the run folder, secrets masked.

Owns the format; does not know who logs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.secrets import MASK, mask

_OURS = ("dvi", "trainers", "serving")
FILE_NAME = "log.txt"


class LineFormatter(logging.Formatter):
    """One line a record, as text or JSON; literal secrets and passwords in URLs are replaced."""

    def __init__(self, log_format: str, hidden: tuple[str, ...]) -> None:
        super().__init__()
        self._as_json = log_format == "json"
        self._hidden = hidden

    def _clean(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, MASK)
        return mask(text)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without the newline."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        message = self._clean(message)
        if self._as_json:
            row = {
                "time_s": round(record.created, 3),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": message,
            }
            return json.dumps(row)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        one_line = message.replace("\n", " | ")
        return f"{clock} {record.levelname.lower():<7} {record.name}: {one_line}"


class RunFile(logging.FileHandler):
    """The log in the run folder; a disk that is full or gone costs its lines, never the caller."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line if the file can be opened and written."""
        try:
            super().emit(record)  # opens the file at the first line
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file; what is still in its buffer may be lost."""
        with contextlib.suppress(OSError):
            super().close()


def literal_secrets(config: DviConfig) -> tuple[str, ...]:
    """Values that must not show up in any line: keys from the environment and the config."""
    named = [os.environ.get("DVI_API_KEY", ""), os.environ.get("DVI_ADMIN_KEY", "")]
    keys = ",".join([*named, config.serving.api_key or ""]).split(",")
    # A very short key would blank out ordinary words.
    return tuple(key.strip() for key in keys if len(key.strip()) >= 4)


def set_up_logging(config: DviConfig, run_dir: Path) -> None:
    """Replace the root logger's handlers: stderr and run_dir/log.txt."""
    formatter = LineFormatter(config.run.log_format, literal_secrets(config))
    handlers: list[logging.Handler] = [
        logging.StreamHandler(sys.stderr),
        RunFile(run_dir / FILE_NAME, encoding="utf-8", delay=True),
    ]
    logging.raiseExceptions = False  # a full disk must not make a traceback of each line
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.INFO)
