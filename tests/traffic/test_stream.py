"""The templates: what a stream of prompts promises."""

from __future__ import annotations

from dvi.config.schema import leaves
from dvi.traffic.stream import DOMAINS, make_stream


def test_the_stream_is_a_function_of_its_seed_and_drifts_domain_by_domain() -> None:
    stream = make_stream(40, 0)
    assert stream == make_stream(40, 0)
    assert stream != make_stream(40, 1)
    assert [prompt.domain for prompt in stream] == [d for d in DOMAINS for _ in range(40)]
    assert [prompt.index for prompt in stream] == list(range(40 * len(DOMAINS)))
    assert len({prompt.question for prompt in stream}) == 40 * len(DOMAINS)


def test_the_largest_stream_that_the_config_allows_has_no_repeats() -> None:
    (most,) = [leaf.high for leaf in leaves() if leaf.key == "demo.prompts_per_domain"]
    assert most is not None
    for per_domain in (int(most), 300):  # beyond 80 another template goes on
        stream = make_stream(per_domain, 0)
        assert len({prompt.question for prompt in stream}) == len(DOMAINS) * per_domain


def test_a_domain_does_not_depend_on_the_others() -> None:
    whole = [p.question for p in make_stream(10, 0) if p.domain == "json"]
    assert [p.question for p in make_stream(10, 0, ("json",))] == whole


def test_a_longer_stream_starts_with_the_shorter_one() -> None:
    short, long = make_stream(10, 3), make_stream(20, 3)
    for domain in DOMAINS:
        questions = [p.question for p in long if p.domain == domain]
        assert [p.question for p in short if p.domain == domain] == questions[:10]
