"""`dvi replay export` from outside: what others read in the file, and what a redacted one lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from dvi.cli.main import run
from dvi.config import ReplayConfig
from dvi.replay import open_store
from dvi.replay.walk import BATCH_ROWS
from dvi.types import Round, Source, Trace
from tests.replay.fakes import make_trace

MARK = 31_337  # every stored id, in a vocabulary of 49,152
SECRETS = ("req-mark", "user-mark", "domain-mark", "END")


def marked_traces() -> list[Trace]:
    """More than a batch; rounds of all three sources; the first has another alpha."""
    first = make_trace("req-mark 0", num_tokens=5, fill=MARK)
    rounds = (
        Round(Source.MEMORY, 0, (MARK, MARK), (), 2),
        Round(Source.NEURAL, 4, (MARK,), (-0.25,), 0),
        Round(Source.TARGET, 0, (), (), 0),
    )
    others = [
        replace(make_trace(f"req-mark {n}", num_tokens=5, fill=MARK), rounds=rounds)
        for n in range(1, BATCH_ROWS + 9)
    ]
    return [
        replace(trace, user_hash="user-mark", domain="domain-mark") for trace in (first, *others)
    ]


FORMS = ("full", "redacted")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder; beside it the files that the command wrote, and what stats says."""
    base = tmp_path_factory.mktemp("export")
    folder = base / "state"
    folder.mkdir()
    with open_store(f"sqlite:///{folder / 'replay.sqlite'}", ReplayConfig()) as store:
        store.append("w", marked_traces())
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setenv("DVI_HOME", str(base / "home"))
        patch.delenv("DVI_REPLAY_URL", raising=False)
        assert export(folder, "--to", str(base / "full")) == 0
        assert export(folder, "--to", str(base / "redacted"), "--redact") == 0
        said.truncate(0)
        said.seek(0)
        assert run(["replay", "stats", f"state_dir={folder}", "--json"]) == 0
        (base / "stats.json").write_text(said.getvalue())
        yield folder


def export(state: Path, *words: str) -> int:
    return run(["replay", "export", f"state_dir={state}", *words])


@pytest.mark.parametrize("form", FORMS)
def test_alpha_of_the_file_is_alpha_of_the_store(form: str, state: Path) -> None:
    path = state.parent / form
    table = pyarrow.parquet.read_table(path).to_pydict()
    stats = json.loads((state.parent / "stats.json").read_text())
    rows = BATCH_ROWS + 9
    # The first trace: two rounds of one accepted and one reject. The others: 2 of 2 and 0 of 1.
    assert stats["judged"] == 4 + 3 * (rows - 1)
    assert stats["accepted"] == 2 + 2 * (rows - 1)
    assert stats["rounds"] == 3 * rows
    assert stats["acceptance_rate"] == stats["accepted"] / stats["judged"]
    assert len(table["judged"]) == stats["rows"] == rows
    assert sum(table["accepted"]) / sum(table["judged"]) == stats["acceptance_rate"]
    by_round = [sum(map(sum, table[name])) for name in ("round_accepted", "round_judged")]
    assert by_round == [stats["accepted"], stats["judged"]]
    assert path.stat().st_mode & 0o777 == 0o600
    assert {one.name for one in state.parent.iterdir()} == {*FORMS, "state", "stats.json"}


def test_a_full_file_gives_every_trace_back(state: Path) -> None:
    rows = pyarrow.parquet.read_table(state.parent / "full").to_pylist()
    for row, trace in zip(rows, marked_traces(), strict=True):
        assert (row["writer"], row["request_id"]) == ("w", trace.request_id)
        assert tuple(row["prompt_ids"]) == trace.prompt_ids
        assert tuple(row["output_ids"]) == trace.output_ids
        for name, array in (("top_ids", trace.top_ids), ("top_logits", trace.top_logits)):
            shaped = np.asarray(row[name], array.dtype).reshape(-1, row["num_top"])
            assert np.array_equal(shaped, array)
        assert np.array_equal(np.asarray(row["logsumexp"], np.float32), trace.logsumexp)
        assert json.loads(row["sampling"])["seed"] == trace.sampling.seed
        heads = zip(row["round_source"], row["round_version"], row["round_accepted"], strict=True)
        assert list(heads) == [(r.source, r.adapter_version, r.num_accepted) for r in trace.rounds]
        assert row["proposed_ids"] == [token for r in trace.rounds for token in r.proposed_ids]
        assert row["draft_logprobs"] == [value for r in trace.rounds for value in r.draft_logprobs]


def test_a_redacted_file_holds_no_id_no_name_and_no_tag(state: Path) -> None:
    said = {
        form: json.dumps(pyarrow.parquet.read_table(state.parent / form).to_pylist())
        for form in FORMS
    }
    marks = (str(MARK), *SECRETS)
    assert [mark for mark in marks if mark not in said["full"]] == []
    assert [mark for mark in marks if mark in said["redacted"]] == []
    raw = (state.parent / "redacted").read_bytes()  # names of columns and statistics too
    assert [mark for mark in SECRETS if mark.encode() in raw] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage: dvi replay export --to FILE.parquet"),
        (("--to", "there.parquet"), "is there already"),
        (("--to", "no/such/x.parquet"), "there is no folder"),
        (("--to", "x.parquet", "--user", "ann"), "--user belongs to `dvi replay purge`"),
    ],
)
def test_a_wrong_export_exits_2_with_one_line_and_writes_nothing(
    words: tuple[str, ...],
    said: str,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = state.parent / "state"
    monkeypatch.chdir(folder)
    (folder / "there.parquet").write_bytes(b"mine")
    assert export(state, *words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert [one.read_bytes() for one in folder.glob("*.parquet")] == [b"mine"]


def test_exporting_where_there_is_no_store_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DVI_REPLAY_URL", raising=False)
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    assert export(tmp_path / "none", "--to", str(tmp_path / "x.parquet")) == 0
    assert "no replay store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
