"""The frame of the bench: which parts run, what is written, and its arithmetic."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dvi.bench.bench import Bench, Ids
from dvi.bench.main import run_bench
from dvi.bench.part import Bars, Grid, Lines, Part, Section
from dvi.bench.parts import PARTS, chosen_parts
from dvi.bench.peers import HfRunner
from dvi.bench.race import How
from dvi.bench.report import draw, print_section
from dvi.bench.stats import quantile, ratios, spread
from dvi.config import DviConfig
from dvi.modeling.peer import PeerAnswer
from dvi.modeling.tokenizer import Tokenizer
from dvi.traffic.stream import DOMAINS


def test_spread_is_median_and_extremes() -> None:
    row = spread([3.0, 1.0, 10.0])
    assert (row.median, row.low, row.high, row.repeats) == (3.0, 1.0, 10.0, 3)


def test_ratios_are_taken_repeat_by_repeat() -> None:
    # A repeat in which everything is twice as slow changes no ratio.
    assert ratios([10.0, 5.0, 12.0], [5.0, 2.5, 4.0]) == spread([2.0, 2.0, 3.0])


def test_quantile_is_the_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert quantile(values, 0.99) == 99.0
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([1.0, 2.0], 0.99) == 2.0


def _nothing(bench: Bench) -> Section:
    return Section({})


TABLE = [
    Part("first", "", _nothing),
    Part("second", "", _nothing, by_default=False),
    Part("third", "", _nothing),
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("default", ["first", "third"]),
        ("all", ["first", "second", "third"]),
        ("third+second", ["second", "third"]),
        ("default+second", ["first", "second", "third"]),
    ],
)
def test_parts_are_chosen_by_name_and_run_in_the_order_of_the_table(
    text: str, names: list[str]
) -> None:
    assert [part.name for part in chosen_parts(text, TABLE)] == names


@pytest.mark.parametrize("text", ["fourth", "first+fourth", "", "+"])
def test_a_part_that_does_not_exist_is_refused_with_the_names_of_those_that_do(text: str) -> None:
    with pytest.raises(ValueError, match="first, second, third"):
        chosen_parts(text, TABLE)


def test_part_names_are_distinct() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_a_bench_of_steps_and_swaps_leaves_json_and_picture_and_no_traces(
    config: DviConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.bench.parts = "steps+swaps"
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    assert run_bench(config, run_dir, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "home" / "bench" / "bench.json").read_text())
    assert (tmp_path / "home" / "bench" / "bench.png").stat().st_size > 1000
    assert {(row["batch_size"], row["way"]) for row in report["steps"]["rows"]} == {
        (size, way)
        for size in (1, 8)
        for way in ("plain", "plain sampled", "draft", "draft sampled", "draft filtered")
    }
    greedy = [row for row in report["steps"]["rows"] if row["way"] in ("plain", "draft")]
    assert all(row["over_greedy"]["median"] == 1 for row in greedy)
    assert report["swaps"]["count"] == 6
    assert not list(run_dir.glob("replay.sqlite*"))


def test_without_a_drafter_nothing_is_drafted_and_nothing_swapped(
    config: DviConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.bench.parts = "steps+swaps"
    config.drafter.kind = "none"
    assert run_bench(config, tmp_path, as_json=False) == 0
    assert "has nothing to swap" in capsys.readouterr().out


def test_a_report_shows_any_section(capsys: pytest.CaptureFixture[str]) -> None:
    section = Section(
        {"x": 1},
        [Grid("title", ("name", "value"), [("one", "1"), ("two", "2")])],
        [
            Bars("bars", "tok/s", ("a", "b"), {"plain": (1.0, 2.0), "auto": (None, 3.0)}),
            Lines("lines", "width", "ms", {"batch 1": ((1.0, 2.0), (2.0, 3.0))}),
        ],
        notes=["a line"],
        failure="answers differ",
    )
    print_section(section)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("title", "two", "a line", "answers differ"))
    axes = draw({"one": section}).axes
    assert [one.get_title() for one in axes] == ["bars", "lines"]
    assert len(axes[0].patches) == 3  # the bar that is None is left out


def test_a_stream_is_measured_after_its_warm_requests_with_a_trained_draft(
    config: DviConfig, tmp_path: Path
) -> None:
    config.bench.parts = "stream"
    config.bench.warm_requests, config.bench.train_steps, config.bench.repeats = 1, 1, 1
    assert run_bench(config, tmp_path, as_json=False) == 0
    cells = json.loads((tmp_path / "bench.json").read_text())["stream"]["cells"]
    assert [(cell["batch_size"], cell["temperature"]) for cell in cells] == [
        (1, 0.0),
        (8, 0.0),
        (1, 0.8),
        (8, 0.8),
    ]
    ways = {way["way"]: way for way in cells[0]["ways"]}
    assert list(ways) == ["plain", "block", "memory", "auto"]
    assert set(ways["auto"]["over_plain_by_group"]) == set(DOMAINS)
    assert cells[0]["identity"]["identical"] == cells[0]["identity"]["compared"] == 3 * len(DOMAINS)
    assert ways["plain"]["acceptance_rate"] is None
    assert [way["way"] for way in cells[2]["ways"]] == ["plain", "auto"]
    assert not list(tmp_path.glob("adapters"))


@pytest.mark.slow
def test_an_8_bit_target_is_raced_beside_the_float_one_in_one_run(
    config: DviConfig, tmp_path: Path
) -> None:
    config.bench.parts, config.bench.warm_requests, config.bench.train_steps = "int8", 1, 1
    assert run_bench(config, tmp_path, as_json=False) == 0
    found = json.loads((tmp_path / "bench.json").read_text())["int8"]
    (cell,) = found["cells"]
    assert [way["way"] for way in cell["ways"]] == ["plain", "auto", "plain float"]
    # Only answers of the same target are compared.
    assert cell["identity"]["identical"] == cell["identity"]["compared"] == len(DOMAINS)
    shares = [one["median"] for one in cell["ways"][-1]["over_plain_by_group"].values()]
    assert found["plain_over_float"] == pytest.approx(sum(1 / one for one in shares) / len(shares))
    assert not (tmp_path / "int8").exists()


def test_a_target_that_is_quantized_already_is_not_compared_with_itself(
    config: DviConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.bench.parts, config.model.quantization = "int8", "int8"
    assert run_bench(config, tmp_path, as_json=False) == 0
    assert "model.quantization=none" in capsys.readouterr().out


def test_a_prompt_file_is_measured_cold_by_category(config: DviConfig, tmp_path: Path) -> None:
    path = tmp_path / "spec.jsonl"
    rows = [{"category": name, "turns": ["hello"]} for name in ("writing", "math")]
    long = {"category": "math", "turns": ["word " * 3000]}
    path.write_text("\n".join(json.dumps(row) for row in [*rows, long]))
    config.bench.parts, config.bench.prompts = "spec", str(path)
    config.bench.num_prompts, config.bench.repeats = 2, 1
    assert run_bench(config, tmp_path, as_json=False) == 0
    cells = json.loads((tmp_path / "bench.json").read_text())["spec"]["cells"]
    assert [cell["num_prompts"] for cell in cells] == [2, 2, 2]  # without the one too long
    assert set(cells[0]["ways"][-1]["over_plain_by_group"]) == {"writing", "math"}


def test_a_curve_compares_every_pass_with_reading_the_weights(
    config: DviConfig, tmp_path: Path
) -> None:
    config.bench.parts = "curve"
    assert run_bench(config, tmp_path, as_json=False) == 0
    curve = json.loads((tmp_path / "bench.json").read_text())["curve"]
    one = next(row for row in curve["passes"] if (row["batch_size"], row["width"]) == (1, 5))
    assert one["over_limit"] == pytest.approx(one["ms"]["median"] / curve["limit_ms"])
    # 4 layers of width 32: q and o of 4 heads, k and v of 2, of 8 each; three matrices to 48; a
    # head of as many rows as there are ids; four bytes each.
    rows = Tokenizer.load(Path(config.model.path)).num_ids
    weights = 4 * (32 * 8 * (4 + 4 + 2 + 2) + 3 * 32 * 48) + rows * 32
    assert curve["weights_bytes"] == 4 * weights


class SlowPeer:
    """Takes 20 ms for every batch, 10 of them to its first tokens."""

    def generate(
        self, prompts: Sequence[Ids], max_tokens: int, temperature: float, *, lookup: bool
    ) -> list[PeerAnswer]:
        time.sleep(0.02)
        return [PeerAnswer((1,), 0.01) for _ in prompts]


def test_first_tokens_of_a_peers_later_batches_count_from_the_start_of_the_turn() -> None:
    answers = HfRunner("hf", SlowPeer(), 2).run([(1,)] * 5, How(4, 0.0, 0))
    first_s = [one.first_token_s for one in answers]
    assert first_s == sorted(first_s)
    assert min(first_s[2:4]) >= 0.02 + 0.01
    assert first_s[4] >= 2 * 0.02 + 0.01


def test_peers_answer_the_same_prompts_with_the_same_tokens(
    config: DviConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.bench.parts, config.bench.repeats = "peers", 1
    assert run_bench(config, tmp_path, as_json=False) == 0
    single, batch = json.loads((tmp_path / "bench.json").read_text())["peers"]["cells"]
    names = ["plain", "auto", "hf generate", "hf prompt lookup"]
    assert [way["way"] for way in single["ways"]] == names
    assert single["identity"]["compared"] == 3 * len(DOMAINS)
    assert [way["way"] for way in batch["ways"]] == names[:-1]
    assert all(way["first_token_ms"] > 0 for way in single["ways"])
    assert "vllm: not installed" in capsys.readouterr().out
