"""Streams, sums, comparisons and reports of the demo, without a server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from dvi.config import DviConfig
from dvi.demo.answers import Answer, domain_ends, pass_speed, split_blocks
from dvi.demo.compare import compare
from dvi.demo.main import DOMAINS, Run, server_overrides
from dvi.demo.page import page
from dvi.demo.picture import svg
from dvi.demo.report import Checked, Passes, all_identical, make_report
from dvi.demo.server import child_environment, forwarded_overrides
from dvi.demo.timing import Laps
from dvi.launch.compose import compose_config
from dvi.launch.request import LaunchRequest
from dvi.traffic.stream import make_stream
from tests.demo.answers import make_answer


def test_blocks_sum_ten_answers_and_never_span_two_domains() -> None:
    answers = [make_answer(i, domain="sql" if i < 15 else "json") for i in range(30)]
    blocks = split_blocks(answers)
    assert [(b.domain, b.first, b.last) for b in blocks] == [
        ("sql", 0, 9),
        ("sql", 10, 14),
        ("json", 15, 24),
        ("json", 25, 29),
    ]
    assert blocks[0].acceptance_rate == 10 / 20
    assert blocks[0].tokens_per_round == 30 / 20
    # Answers end one a second: ten take ten seconds.
    assert [b.seconds for b in blocks] == [10.0, 5.0, 10.0, 5.0]
    assert blocks[1].tokens_per_s == 15 / 5


def test_the_last_ten_of_a_domain_are_ten_whatever_their_number() -> None:
    answers = [
        make_answer(i, domain="sql" if i < 15 else "json", accepted=int(i % 15 >= 5))
        for i in range(30)
    ]
    for domain, start in (("sql", 0), ("json", 15)):
        first, last = domain_ends(answers[::-1])[domain]
        assert (first.first, first.last, last.first, last.last) == (
            start,
            start + 9,
            start + 5,
            start + 14,
        )
        assert (first.acceptance_rate, last.acceptance_rate) == (5 / 20, 10 / 20)
        assert (first.seconds, last.seconds) == (10.0, 10.0)  # an answer a second


def test_blocks_do_not_depend_on_the_order_of_arrival() -> None:
    answers = [make_answer(i) for i in range(20)]
    assert split_blocks(answers[::-1]) == split_blocks(answers)


def test_rates_are_none_where_nothing_was_proposed() -> None:
    (block,) = split_blocks([make_answer(0, judged=0, accepted=0)])
    assert block.acceptance_rate is None


def test_speed_is_all_tokens_over_the_wall_time_of_the_pass() -> None:
    answers = [make_answer(0, finished_s=2.0), make_answer(1, (1, 2, 3, 4, 5), finished_s=4.0)]
    assert pass_speed(answers) == 8 / 4


@pytest.mark.parametrize(
    ("ours", "theirs", "position", "ids"),
    [
        ((1, 2, 3), (1, 9, 3), 1, (2, 9)),
        ((1, 2), (1, 2, 3), 2, (None, 3)),
        ((1, 2, 3), (1, 2), 2, (3, None)),
        ((5,), (6,), 0, (5, 6)),
    ],
)
def test_a_difference_is_found_at_its_first_token(
    ours: tuple[int, ...],
    theirs: tuple[int, ...],
    position: int,
    ids: tuple[int | None, int | None],
) -> None:
    result = compare(
        [make_answer(0), make_answer(1, ours)], [make_answer(1, theirs), make_answer(0)]
    )
    (found,) = result.divergences
    assert (result.compared, result.identical) == (2, 1)
    assert (found.index, found.position, (found.served_id, found.plain_id)) == (1, position, ids)
    assert found.prefix_ids == (7, 8, *ours[:position])


def test_answers_to_different_prompts_are_not_identical() -> None:
    other = replace(make_answer(0), prompt_ids=(7, 9))
    assert compare([make_answer(0)], [other]).identical == 0


def _passes(*, control: bool) -> Passes:
    def one_pass(alpha: int) -> list[Answer]:
        return [
            make_answer(
                20 * d + i,
                domain=domain,
                judged=10,
                accepted=min(10, alpha * (1 + i // 10)),
                versions=(i // 10, i // 10),
            )
            for d, domain in enumerate(DOMAINS)
            for i in range(20)
        ]

    served = one_pass(4)
    return Passes(
        served=served,
        plain=served,
        sampled=served[:3],
        sampled_plain=served[:3],
        speed_sample=[make_answer(20 * d + 19, domain=name) for d, name in enumerate(DOMAINS)],
        control=one_pass(0) if control else (),
    )


ABOUT = {
    "model": "<b>m</b>",
    "drafter": "block",
    "mode": "deterministic",
    "system_fingerprint": "fp",
    "seconds": 1.0,
    "phase_seconds": {"stream": 1.0},
    "created": "now",
}


def _report(passes: Passes) -> dict[str, object]:
    greedy = Checked(compare(passes.served, passes.plain), ())
    return make_report(ABOUT, passes, {"greedy": greedy, "sampled": greedy})


def test_the_report_gives_each_domains_gain_over_the_untrained_draft() -> None:
    report = make_report(
        ABOUT,
        _passes(control=True),
        {"greedy": Checked(compare([], []), ())},
    )
    assert [row["domain"] for row in report["domains"]] == list(DOMAINS)
    for row in report["domains"]:
        assert row["alpha_first_ten"] == 0.4
        assert row["alpha_last_ten"] == 0.8
        assert row["alpha_gain_over_untrained"] == 0.8  # the control stays at 0
    assert all_identical(report)
    json.dumps(report, allow_nan=False)


def test_one_different_answer_is_enough_to_fail() -> None:
    passes = _passes(control=False)
    other = [replace(answer, token_ids=(1, 2)) for answer in passes.plain[:1]]
    checked = Checked(compare(passes.served, [*other, *passes.plain[1:]]), (1e-4,))
    report = make_report(ABOUT, passes, {"sampled": checked})
    assert not all_identical(report)
    assert report["identity"]["sampled"]["divergences"][0]["margin"] == 1e-4


def test_tool_calls_are_reported_where_there_were_any() -> None:
    passes = _passes(control=False)
    assert _report(passes)["tools"] is None
    calls = [make_answer(i, domain="tools", judged=4, accepted=3) for i in range(2)]
    slow = [replace(one, finished_s=2 * one.finished_s) for one in calls]
    report = _report(replace(passes, tools=calls, tools_plain=slow))
    expected = {"calls": 2, "alpha": 0.75, "tokens_per_round": 1.5, "served_over_plain": 2.0}
    assert report["tools"] == expected
    assert "2 tool calls" in page(report, svg(report))


def test_the_page_loads_nothing_and_escapes_text() -> None:
    report = _report(_passes(control=True))
    text = page(report, svg(report))
    assert "<b>m</b>" not in text
    # Name spaces of the SVG and its licence note are names, not loads.
    loads = re.findall(r"(?:src|href)=[\"']?(?!#)[^\"'> ]+", text)
    assert [item for item in loads if "xmlns" not in item and "purl.org" not in item] == []
    assert "<script" not in text


def test_the_picture_of_one_report_is_always_the_same() -> None:
    report = _report(_passes(control=False))
    assert svg(report) == svg(report)


def test_the_servers_overrides_compose_to_what_the_user_asked_for() -> None:
    config = DviConfig(state_dir="/users/state")
    config.model.path = "it's \\ here"
    config.drafter.block_layer, config.trainer.learning_rate = 7, 1e-3
    config.decoding.adaptive = False
    config.serving.api_key = "a-key"
    config.replay.url = "sqlite:///users.sqlite"
    overrides = forwarded_overrides(config)
    composed = compose_config(LaunchRequest("serve", tuple(overrides)))
    assert (composed.model, composed.drafter) == (config.model, config.drafter)
    assert (composed.trainer, composed.decoding) == (config.trainer, config.decoding)
    # Never the user's own state, store or keys.
    assert (composed.state_dir, composed.replay.url, composed.serving.api_key) == (None, None, None)
    env = {"DVI_REPLAY_URL": "x", "DVI_API_KEY": "x", "DVI_ADMIN_KEY": "x", "PATH": "p"}
    assert child_environment(env) == {"PATH": "p"}


def test_what_is_compared_is_computed_apart() -> None:
    """Each pass shares prompts with itself alone, so no pass starts from what another computed."""
    config = DviConfig()
    composed = compose_config(LaunchRequest("serve", tuple(server_overrides(config))))
    assert composed.decoding.prefix_scope == "user"
    run = Run(config, make_stream(1, 0, DOMAINS), Laps())
    ways = [run.ways(speculation=s, temperature=t) for s in (True, False) for t in (0.0, 0.8)]
    assert len({way.user for way in ways} - {None}) == len(ways)


def test_the_times_of_phases_add_up_to_the_time_of_the_run() -> None:
    times = iter([10.0, 12.0, 15.0, 16.0])
    laps = Laps(lambda: next(times))
    for phase in ("start", "stream", "start"):
        laps.lap(phase)
    assert laps.seconds == {"start": 2.0 + 1.0, "stream": 3.0}
    assert laps.total == 16.0 - 10.0


def test_the_demo_waits_for_no_import_of_torch() -> None:
    """Its server imports that as well, and starts only after the demo's own imports."""
    code = "import dvi.demo.main, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
