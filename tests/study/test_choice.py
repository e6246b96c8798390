"""Tables of the choice between sources, from rounds whose numbers are worked out here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dvi.study.choice import MEAN, by_stretch, choices, recoveries
from dvi.study.results import ArmResult, RequestRow
from tests.study.test_measures import result, row

HALF, WHOLE, NONE = "nN", "n.", "NN"  # alpha 1/2, 1, 0


def walked(neural: str, memory: str, auto: str) -> RequestRow:
    return replace(row("a", "11"), walks={"neural": neural, "memory": memory, "auto": auto})


def test_auto_is_compared_with_the_better_source_of_each_stretch() -> None:
    """In a the memory is better (1/2 against 0), in b the draft (1 against 1/2)."""
    a = walked("NN", "mM", "mMn.")  # 2 of 3
    b = replace(walked("n.", "mM", "nN"), domain="b")
    found = choices([result([a, a, b])])
    assert list(found) == ["a", "b", MEAN]
    assert found["a"]["gain judged"] == pytest.approx(2 / 3 - 1 / 2)
    assert found["b"]["gain judged"] == pytest.approx(1 / 2 - 1)
    assert found[MEAN]["gain judged"] == pytest.approx((1 / 6 - 1 / 2) / 2)
    assert found["a"]["by memory"] == pytest.approx(2 / 3)  # of judged proposals
    assert found["b"]["by memory"] == 0


def test_silence_is_a_miss_when_sources_are_compared() -> None:
    """The memory is right in one of two rounds and says nothing in the other; auto tries there."""
    found = choices([result([walked("nN", "m.-", "m.N")])])["a"]
    assert (found["memory judged"], found["memory rate"]) == (1, 1 / 2)
    assert found["auto judged"] == found["auto rate"] == 1 / 2
    assert (found["gain judged"], found["gain rate"]) == (-1 / 2, 0)
    assert found["memory tokens"] == found["auto tokens"] == 3 / 2


def stretch(domain: str, first: str, then: str, later: str) -> list[RequestRow]:
    """60 requests: ten, forty, ten."""
    texts = [first] * 10 + [then] * 40 + [later] * 10
    return [row(domain, "11", auto=text) for text in texts]


def test_recovery_is_the_share_of_the_last_quarter() -> None:
    one = result(stretch("a", NONE, HALF, WHOLE))
    values = recoveries([one])["a"]
    # the last 15: five of 1 judged 2, ten of 1 judged 1
    steady = 15 / 20
    assert values["steady"] == pytest.approx(steady)
    assert (values["1-10"], values["21-30"], values["51-60"]) == (0, 0.5, 1)
    assert values["share 21-30"] == pytest.approx(0.5 / steady)
    assert values["share 51-60"] == pytest.approx(1 / steady)


def test_a_domain_that_is_back_is_compared_with_its_first_time() -> None:
    def arm(seed: int, again: str) -> ArmResult:
        rows = [
            *stretch("a", NONE, HALF, HALF),
            *stretch("b", WHOLE, WHOLE, WHOLE),
            *stretch("a", again, WHOLE, WHOLE),
        ]
        return replace(result(rows, seed=seed), stream="return")

    arms = [arm(0, HALF), arm(1, NONE)]
    assert list(by_stretch(arms)) == ["a", "b", "a again"]
    values = recoveries(arms)["a again"]
    assert values["1-10"] == pytest.approx((1 / 2 + 0) / 2)  # over seeds
    assert values["share 1-10"] == pytest.approx(1 / 4 / (1 / 2))  # a was at 1/2 before b
    assert values["share 21-30"] == 1


def test_the_draft_alone_is_compared_with_its_own_level_before() -> None:
    """It was at 1/2 before b and is back at 1; auto was at 1 and is back at 0."""

    def rows(domain: str, neural: str, auto: str) -> list[RequestRow]:
        walks = {"neural": neural, "memory": NONE, "auto": auto}
        return [replace(row(domain, "11"), walks=walks) for _ in range(60)]

    stream = [*rows("a", HALF, WHOLE), *rows("b", NONE, NONE), *rows("a", WHOLE, NONE)]
    arm = replace(result(stream), stream="return")
    assert recoveries([arm], "neural")["a again"]["share 1-10"] == 2
    assert recoveries([arm], "auto")["a again"]["share 1-10"] == 0
