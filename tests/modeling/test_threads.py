"""What a thread beside decoding may take."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dvi.modeling.threads import SIDE_NICENESS, set_side_modes


@pytest.mark.skipif(sys.platform != "linux", reason="a thread's own priority is Linux's")
def test_work_beside_decoding_takes_one_core_and_little_of_it_and_others_keep_theirs() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def look() -> tuple[int, int]:
        niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return niceness, torch.get_num_threads()

    with ThreadPoolExecutor(1, initializer=set_side_modes) as pool:
        assert pool.submit(look).result() == (SIDE_NICENESS, 1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(look).result()[0] == before
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
