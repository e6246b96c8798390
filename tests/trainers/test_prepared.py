"""Files as rows: the target's own answers, once, resumable; given answers judged as they stand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from dvi.config import DataConfig, DrafterConfig, DviConfig, ModelConfig, ServingConfig
from dvi.config.learning import ReplayConfig
from dvi.decoding.startup import load_model
from dvi.modeling.tokenizer import Tokenizer
from dvi.replay import StoredTrace
from tests.drafting.rows import SMALL
from tests.rigs import make_model_folder
from trainers import prepared
from trainers.answers import Answerer
from trainers.examples import Example
from trainers.prepared import is_complete, open_rows, prepare

ROWS = [
    *({"prompt": f"The dog sleeps; the fox runs {i}"} for i in range(9)),
    {"prompt": "the dog", "completion": "the fox runs"},
    {"messages": [{"role": "user", "content": "price"}]},
]


class Interrupted(Exception):
    """Ctrl-C after a group."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DviConfig:
    """A tiny model and a file of ROWS; groups of two rows, batches of two."""
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(prepared, "GROUPS", 1)
    make_model_folder(tmp_path / "model")
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS))
    return DviConfig(
        model=ModelConfig(path=str(tmp_path / "model"), device="cpu"),
        drafter=DrafterConfig(kind="block", **SMALL),
        data=DataConfig(kind="file", path=str(file), max_tokens=6, batch_size=2),
        replay=ReplayConfig(top_ids=16),
        serving=ServingConfig(max_context_len=128),
    )


def stored(folder: Path, config: DviConfig) -> list[StoredTrace]:
    with open_rows(folder, config.replay) as store:
        return store.read({}, 100)


def counted(calls: list[tuple[int, int]], stop_at: int = -1):
    def answered(done: int, total: int) -> None:
        calls.append((done, total))
        if done == stop_at:
            raise Interrupted

    return answered


def test_the_answers_are_the_target_s_greedy_ones_with_its_logits(config: DviConfig) -> None:
    rows = stored(prepare(config, counted([])), config)
    assert [row.trace.request_id for row in rows] == [f"row-{i}" for i in range(len(ROWS))]
    model = AutoModelForCausalLM.from_pretrained(config.model.path)
    count = Tokenizer.load(Path(config.model.path)).num_ids  # rows beyond are padding
    for row in rows:
        trace = row.trace
        ids = torch.tensor([[*trace.prompt_ids, *trace.output_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(trace.prompt_ids) - 1 : -1, :count]
        best = logits.topk(16)
        # another order of sums in float32, at logits of some ten
        np.testing.assert_allclose(trace.top_logits, best.values, atol=1e-3)
        np.testing.assert_allclose(trace.logsumexp, logits.logsumexp(-1), atol=1e-3)
        assert len(trace.rounds) == len(trace.output_ids)
        if trace.request_id != "row-9":  # its answer was given
            assert trace.output_ids == tuple(best.indices[:, 0].tolist())


def test_a_given_answer_is_kept_and_judged_as_the_target_s_own_would_be(
    config: DviConfig,
) -> None:
    first = stored(prepare(config, counted([])), config)
    own = first[0].trace  # the same tokens, now given: equal judgement, up to rounding
    answerer = Answerer(load_model(config), config)
    (judged,) = answerer.traces([Example(own.prompt_ids, own.output_ids)], 0)
    assert judged.output_ids == own.output_ids
    assert judged.rounds == own.rounds
    np.testing.assert_array_equal(judged.top_ids, own.top_ids)
    np.testing.assert_allclose(judged.top_logits, own.top_logits, atol=1e-4)
    np.testing.assert_allclose(judged.logsumexp, own.logsumexp, atol=1e-4)
    given = first[9].trace
    assert given.output_ids != tuple(given.top_ids[:, 0])  # somebody else's words


def test_a_second_run_answers_nothing_and_other_settings_are_other_rows(config: DviConfig) -> None:
    calls: list[tuple[int, int]] = []
    folder = prepare(config, counted(calls))
    assert calls == [(done, 11) for done in (0, 2, 4, 6, 8, 10, 11)]
    again: list[tuple[int, int]] = []
    assert prepare(config, counted(again)) == folder
    assert again == []
    longer = replace(config, data=replace(config.data, max_tokens=7))
    assert prepare(longer, counted(again)) != folder
    assert again


def test_stopped_three_times_it_ends_with_the_rows_of_an_uninterrupted_run(
    config: DviConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stored(prepare(config, counted([])), config)
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "other"))
    starts = []
    for stop_at in (2, 6, 10):
        calls: list[tuple[int, int]] = []
        with pytest.raises(Interrupted):
            prepare(config, counted(calls, stop_at))
        starts.append(calls[0][0])
        assert not is_complete(prepared.rows_folder(config))
    assert starts == [0, 2, 6]
    folder = prepare(config, counted([]))
    assert is_complete(folder)
    resumed = stored(folder, config)
    assert [row.key for row in resumed] == [row.key for row in whole]
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours.trace.output_ids == theirs.trace.output_ids
        np.testing.assert_array_equal(ours.trace.top_logits, theirs.trace.top_logits)


def test_a_kill_between_store_and_count_stores_nothing_twice(
    config: DviConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object, **__: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_write_progress", dying)
        with pytest.raises(Interrupted):
            prepare(config, counted([]))
    rows = stored(prepare(config, counted([])), config)
    assert [row.trace.request_id for row in rows] == [f"row-{i}" for i in range(len(ROWS))]


def test_rows_longer_than_the_context_are_left_out_and_said(
    config: DviConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with open(config.data.path or "", "a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"prompt": "fox " * 300}))
    rows = stored(prepare(config, counted([])), config)
    assert len(rows) == len(ROWS)
    assert "1 of 12 rows are longer" in caplog.text


def test_a_wrong_row_is_named_by_its_number(config: DviConfig) -> None:
    with open(config.data.path or "", "a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"question": "x"}))
    with pytest.raises(ValueError, match=r"row 12 of .*no column of"):
        prepare(config, counted([]))
