"""Whether the compiled kernels are there and this processor can run them; imports no torch."""

from __future__ import annotations

from pathlib import Path

NEEDED = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}


def can_run(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor has what the kernels are written for."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= NEEDED


def compiled_files() -> list[Path]:
    """What setup.py has built here; one suffices, whichever Python it was built for."""
    return sorted(Path(__file__).parent.glob("_kernels*.so"))
