"""The bench on a small random model, and its arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvi.bench.main import run_bench
from dvi.bench.prompts import load_prompts
from dvi.bench.stats import quantile, spread
from dvi.config import BenchConfig, DviConfig
from dvi.modeling.tokenizer import Tokenizer
from tests.rigs import make_model_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model_folder(path)
    return path


def test_spread_is_median_and_extremes() -> None:
    row = spread([3.0, 1.0, 10.0])
    assert (row.median, row.low, row.high, row.repeats) == (3.0, 1.0, 10.0, 3)


def test_quantile_is_the_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert quantile(values, 0.99) == 99.0
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([1.0, 2.0], 0.99) == 2.0


def _config(model: Path) -> DviConfig:
    config = DviConfig()
    config.model.path = str(model)
    config.model.num_threads = 1
    config.serving.max_context_len = 1024
    config.bench = BenchConfig(num_prompts=2, max_tokens=8, repeats=2, timed_steps=2, swaps=6)
    return config


def test_a_bench_measures_every_way_and_leaves_json_and_picture(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    assert run_bench(_config(model), run_dir, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "home" / "bench" / "bench.json").read_text())
    assert (tmp_path / "home" / "bench" / "bench.png").stat().st_size > 1000
    assert {(row["batch_size"], row["way"]) for row in report["answers"]} == {
        (size, way) for size in (1, 8) for way in ("plain", "draft")
    }
    assert {row["way"] for row in report["steps"]} == {
        "plain",
        "plain sampled",
        "draft",
        "draft sampled",
        "draft filtered",
    }
    assert report["swaps"]["count"] == 6
    assert 0 < report["log_share"]["median"] < 1
    plain = [row for row in report["answers"] if row["way"] == "plain"]
    assert all(row["over_plain"] == 1 and row["acceptance_rate"] is None for row in plain)
    assert not list(run_dir.glob("replay.sqlite*"))


def test_a_bench_without_drafter_compares_nothing_and_swaps_nothing(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    config = _config(model)
    config.drafter.kind = "none"
    assert run_bench(config, tmp_path, as_json=False) == 0
    assert "swap pause" not in capsys.readouterr().out


def test_prompts_come_from_a_file_in_both_forms_and_repeat(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "hello"}, {"messages": [{"role": "user", "content": "hello"}]}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    tokenizer = Tokenizer.load(model)
    prompts = load_prompts(BenchConfig(prompts=str(path), num_prompts=3), tokenizer)
    assert prompts[0] == tuple(tokenizer.encode("hello", add_special_tokens=True))
    assert prompts[2] == prompts[0]
    assert len(prompts[1]) > len(prompts[0])  # the chat template's own tokens


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "line 1 is not JSON"), ('{"text": "x"}', "needs"), ("\n", "holds no prompt")],
)
def test_a_prompt_file_of_another_form_is_refused_in_one_line(
    text: str, said: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        load_prompts(BenchConfig(prompts=str(path)), Tokenizer.load(model))
