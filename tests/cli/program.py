"""Runs `python -m dvi` as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_dvi(
    *words: str,
    home: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """The finished process; DVI_HOME is a folder of the test's own."""
    names = ("DVI_API_KEY", "DVI_ADMIN_KEY", "DVI_REPLAY_URL", "HYDRA_FULL_ERROR")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-m", "dvi", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=cwd,
        env={**clean, "DVI_HOME": str(home), "NO_COLOR": "1", **(env or {})},
    )
