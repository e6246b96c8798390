"""A server that starts again remembers what was served; nothing waits for it."""

from __future__ import annotations

from pathlib import Path

from dvi.config import DrafterConfig, ReplayConfig
from dvi.drafting import DraftRequest
from dvi.drafting.base import Context
from dvi.drafting.memory import MemoryDrafter
from dvi.drafting.none import NoDrafter
from dvi.replay import Selection, open_store
from dvi.types import SamplingParams
from serving.recollection import Recollection
from serving.trace_log import TraceLog
from tests.replay.fakes import make_trace
from tests.serving.live import wait_for


def filled_log(folder: Path, num_traces: int) -> TraceLog:
    """A log whose store holds answers ``t0 ..``."""
    url = f"sqlite:///{folder / 'replay.sqlite'}"
    with open_store(url, ReplayConfig()) as store:
        for index in range(num_traces):
            store.append("w", [make_trace(f"t{index}")])
    return TraceLog(url, ReplayConfig(), keep_content=True)


def test_stored_answers_are_remembered_at_start(tmp_path: Path) -> None:
    memory = MemoryDrafter(DrafterConfig(kind="memory"))
    with filled_log(tmp_path, 40) as log:
        traces = log.newest(10**6)
        with Recollection(log, memory, ""):
            assert wait_for(
                lambda: memory.served.take_in(None) or memory.served.num_documents == 40
            )
    assert [trace.request_id for trace in traces] == [f"t{index}" for index in range(40)]
    memory.served.take_in(None)
    assert memory.served.num_documents == 40
    newest = traces[-1]
    context = Context([10**6, *newest.prompt_ids[-2:]])
    params = SamplingParams(max_tokens=9, temperature=0.0)
    request = DraftRequest(0, len(context.tokens) - 1, context.tokens[-1], 1, params, context)
    assert memory.recall([request])[0].ids[0] in {trace.output_ids[0] for trace in traces}


def test_only_the_newest_answers_that_fit_are_read(tmp_path: Path) -> None:
    with filled_log(tmp_path, 100) as log:
        one = len(log.newest(1)[-1].output_ids)
        names = [trace.request_id for trace in log.newest(40 * one)]
    assert names == [f"t{index}" for index in range(100 - len(names), 100)]
    assert 40 <= len(names) <= 64


def test_a_store_that_is_away_and_a_drafter_without_memory_cost_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'replay.sqlite'}"
    memory = MemoryDrafter(DrafterConfig(kind="memory"))
    unopened = TraceLog(url, ReplayConfig(), keep_content=False)
    with unopened, Recollection(unopened, memory, ""), Recollection(unopened, NoDrafter(), ""):
        pass
    memory.served.take_in(None)
    assert memory.served.num_documents == 0


def test_a_purge_by_another_process_is_forgotten_and_what_is_left_remembered_again(
    tmp_path: Path,
) -> None:
    memory = MemoryDrafter(DrafterConfig(kind="memory"))
    url = f"sqlite:///{tmp_path / 'replay.sqlite'}"

    def num_documents() -> int:
        memory.served.take_in(None)
        return memory.served.num_documents

    with filled_log(tmp_path, 3) as log, Recollection(log, memory, ""):
        assert wait_for(lambda: num_documents() == 3)
        with open_store(url, ReplayConfig()) as other:
            assert other.purge(Selection(request_id="none of these")).rows == 0
            assert other.purge(Selection(request_id="t1")).rows == 1
        assert wait_for(lambda: num_documents() == 2)


def test_a_purge_empties_a_memory_that_stored_answers_cannot_refill(tmp_path: Path) -> None:
    memory = MemoryDrafter(DrafterConfig(kind="memory"))
    url = f"sqlite:///{tmp_path / 'replay.sqlite'}"
    with filled_log(tmp_path, 2) as log, Recollection(log, memory, None):
        memory.remember((1, 2), (3, 4), "ann")
        memory.served.take_in(None)
        with open_store(url, ReplayConfig()) as other:
            assert other.purge(Selection(request_id="t1")).rows == 1
        assert wait_for(lambda: memory.served.take_in(None) or memory.served.num_documents == 0)
