"""Training in bfloat16 does not collect a compiled kernel for every batch that it meets."""

from __future__ import annotations

import subprocess
import sys

import pytest

NUM_STEPS = 80
# A kernel a product and step took 850 MB here; what comes and goes in a step is under 50 MB.
MAX_GROWTH = 100e6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("precision", ["autocast", "model"])
def test_memory_stays_flat_over_batches_of_any_length(precision: str) -> None:
    run = [sys.executable, "-m", "tests.trainers.ragged_steps", precision, str(NUM_STEPS)]
    grown = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert grown < MAX_GROWTH
