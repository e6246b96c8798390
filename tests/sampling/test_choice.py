"""The choice rule against its specification, its law, and its promises."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from dvi.sampling import ChoicePoint, choose, choose_draft
from dvi.types import SamplingParams
from tests.sampling.reference import choose_slowly, kept_ids, scores_of

FALSE_ALARM = 1e-6  # of each chi-square test; the seeds are 0, 1, 2, ..., so a pass stays a pass
INF = float("inf")

FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 5, "top_p": 0.8},
    {"top_k": 6, "top_p": 0.9, "min_p": 0.08},
]
TEMPERATURES = [0.0, 0.01, 0.3, 0.8, 1.0, 2.0, 5.0]


def point(position=3, **fields):
    return ChoicePoint(SamplingParams(max_tokens=1, **fields), position)


def softmax_over(row, kept, temperature):
    weights = np.zeros(len(row))
    ids = sorted(kept)
    weights[ids] = np.exp((row[ids].astype(np.float64) - row.max()) / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_law_over_seeds_is_the_softmax_over_the_kept_ids(filters, temperature):
    row = torch.tensor([0.3, 1.7, -INF, 1.1, -0.4, 2.0, 0.9, -1.5])
    num_seeds = 4000
    points = [point(seed=seed, temperature=temperature, **filters) for seed in range(num_seeds)]
    chosen = np.bincount(choose(row.expand(num_seeds, -1), points), minlength=8)
    kept = kept_ids(row.numpy(), points[0].params)
    expected = num_seeds * softmax_over(row.numpy(), kept, temperature)
    assert set(np.flatnonzero(chosen)) <= kept
    possible = expected > 0
    if possible.sum() > 1:
        assert stats.chisquare(chosen[possible], expected[possible]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("along", ["position", "choice_index"])
def test_law_holds_along_positions_and_choices_of_one_seed(along):
    row = torch.tensor([0.0, 1.0, 0.5, -1.0, 2.0])
    num = 4000
    points = [
        point(position=index, temperature=1.0, seed=9)
        if along == "position"
        else point(choice_index=index, temperature=1.0, seed=9)
        for index in range(num)
    ]
    chosen = np.bincount(choose(row.expand(num, -1), points), minlength=5)
    expected = num * softmax_over(row.numpy(), range(5), 1.0)
    assert stats.chisquare(chosen, expected).pvalue > FALSE_ALARM


def test_consecutive_tokens_of_one_seed_are_independent():
    row = torch.tensor([0.0, 0.3, -0.2])
    num = 6000
    tokens = choose(row.expand(num, -1), [point(position=i, seed=5) for i in range(num)])
    pairs = np.zeros((3, 3))
    for first, second in itertools.pairwise(tokens):
        pairs[first, second] += 1
    assert stats.chi2_contingency(pairs).pvalue > FALSE_ALARM


def rows_of(kind, num_rows, num_ids, seed):
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(num_rows, num_ids, generator=generator)
    normal[:, -1] = normal[:, -1].abs()  # at least one id exists among holes
    return {
        "peaked": normal * 4,
        "usual": normal * 2,
        "flat": normal * 0.05,
        "coarse": (normal * 3).round(),  # many exact ties
        "holes": (normal * 2).masked_fill(normal < -0.5, -INF),
        "float64": normal.double() * 2,
    }[kind]


@pytest.mark.parametrize("kind", ["peaked", "usual", "flat", "coarse", "holes", "float64"])
@pytest.mark.parametrize("num_ids", [2, 5, 64, 1000])
def test_choose_equals_the_specification(kind, num_ids):
    mixes = itertools.product(TEMPERATURES, [0, 1, 7, 50], [1.0, 0.95, 0.3], [0.0, 0.05])
    cases = [{"temperature": t, "top_k": k, "top_p": p, "min_p": m} for t, k, p, m in mixes]
    rows = rows_of(kind, len(cases), num_ids, seed=num_ids)
    points = [
        point(position=7 * index, seed=(index << 58) + index, choice_index=index % 3, **fields)
        for index, fields in enumerate(cases)
    ]
    expected = [choose_slowly(row, at) for row, at in zip(rows.numpy(), points, strict=True)]
    assert choose(rows, points) == expected


@pytest.mark.parametrize("kind", ["peaked", "usual", "flat", "coarse"])
def test_choose_equals_the_specification_on_a_large_vocabulary(kind):
    cases = [
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.95},
        {"temperature": 5.0, "top_p": 0.999},
        {"temperature": 1.5, "top_k": 2000, "top_p": 0.9, "min_p": 1e-4},
        {"temperature": 0.01, "min_p": 0.5},
        {"temperature": 0.0},
    ]
    rows = rows_of(kind, len(cases), 50_000, seed=1)
    points = [point(seed=index, **fields) for index, fields in enumerate(cases)]
    expected = [choose_slowly(row, at) for row, at in zip(rows.numpy(), points, strict=True)]
    assert choose(rows, points) == expected


def test_winners_far_below_the_top_are_found():
    # one id at the top, 20,000 ids 9 T below it: together they win 20000 e^-9 / (1 + ...) = .71
    row = torch.full((20_001,), -9.0)
    row[123] = 0.0
    points = [point(seed=seed, temperature=1.0) for seed in range(60)]
    chosen = choose(row.expand(60, -1), points)
    assert chosen == [choose_slowly(row.numpy(), at) for at in points]
    assert 20 < sum(token_id != 123 for token_id in chosen) < 60


def test_greedy_takes_the_largest_logit_and_the_lowest_id_on_a_tie():
    rows = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [0.0, -INF, 0.0, 1.0]])
    points = [point(temperature=0.0, seed=seed, top_k=2, top_p=0.5) for seed in (1, 2, 3)]
    assert choose(rows, points) == [1, 0, 3]
    assert choose_draft(rows, points) == [1, 0, 3]


def test_temperature_towards_zero_becomes_greedy():
    rows = rows_of("usual", 50, 200, seed=3)
    cold = [point(seed=seed, temperature=1e-6) for seed in range(50)]
    assert choose(rows, cold) == rows.argmax(-1).tolist()


@pytest.mark.parametrize("seed", [251, 931, 1229, 1845])
def test_equal_scores_go_to_the_lowest_id(seed):
    row = torch.zeros(1 << 14)  # with these seeds (one in 750) the two best ids share their bits
    at = point(seed=seed, temperature=1.0)
    scores = scores_of(row.numpy(), at)
    best = np.flatnonzero(scores == scores.max())
    assert len(best) > 1
    assert choose(row[None], [at]) == [int(best[0])]


def test_ids_that_do_not_exist_are_never_chosen():
    row = torch.full((500,), -INF)
    row[[7, 400]] = torch.tensor([-50.0, -52.0])
    points = [point(seed=seed, temperature=5.0) for seed in range(300)]
    assert set(choose(row.expand(300, -1), points)) == {7, 400}
    assert set(choose_draft(row.expand(300, -1), points)) == {7, 400}


@pytest.mark.parametrize("bad", [-INF, INF, float("nan")])
def test_a_row_without_a_finite_largest_logit_is_refused(bad):
    rows = torch.zeros(2, 10)
    rows[1] = bad
    with pytest.raises(ValueError, match="finite"):
        choose(rows, [point(), point()])
    with pytest.raises(ValueError, match="finite"):
        choose_draft(rows, [point(), point()])


def test_a_row_does_not_depend_on_its_neighbours():
    rows = rows_of("usual", 12, 3000, seed=4)
    points = [
        point(seed=seed, temperature=TEMPERATURES[seed % 7], **FILTERS[seed % 7])
        for seed in range(12)
    ]
    alone = [choose(rows[i : i + 1], points[i : i + 1])[0] for i in range(12)]
    order = [5, 3, 11, 0, 1, 2, 4, 6, 7, 8, 9, 10]
    assert choose(rows, points) == alone
    assert choose(rows[order], [points[i] for i in order]) == [alone[i] for i in order]


@pytest.mark.parametrize("changed", [{"position": 4}, {"seed": 1}, {"choice_index": 1}])
def test_position_seed_and_choice_index_change_the_noise(changed):
    rows = torch.zeros(1, 10_000)
    assert choose(rows, [point(**{"position": 3, **changed})]) != choose(rows, [point()])


def test_what_cannot_change_the_distribution_cannot_change_the_choice():
    rows = rows_of("usual", 1, 1000, seed=5)
    base = choose(rows, [point(seed=3)])
    longer = SamplingParams(max_tokens=99, seed=3, stop=("x",), end_token_ids=(2,))
    assert choose(rows, [ChoicePoint(longer, 3)]) == base


def test_the_draft_proposes_what_the_target_chooses_when_their_logits_agree():
    rows = rows_of("peaked", 300, 5000, seed=6)
    for fields in FILTERS:
        points = [point(seed=seed, temperature=0.8, **fields) for seed in range(300)]
        same = np.mean(np.array(choose(rows, points)) == choose_draft(rows, points))
        # the draft ignores ids 8 T below its top (their mass here is about .01) and takes the
        # rest as the whole mass for top-p
        assert same >= 0.97


def test_the_draft_keeps_to_its_top_ids_when_it_knows_nothing():
    rows = rows_of("flat", 4, 20_000, seed=7)
    points = [point(seed=seed, temperature=1.0) for seed in range(4)]
    for row, proposal in zip(rows, choose_draft(rows, points), strict=True):
        assert int((row > row[proposal]).sum()) < 1024


def test_logits_are_not_changed():
    rows = rows_of("usual", 4, 500, seed=8)
    before = rows.clone()
    points = [point(seed=seed, top_k=20, top_p=0.9, min_p=0.01) for seed in range(4)]
    choose(rows, points)
    choose_draft(rows, points)
    assert torch.equal(rows, before)
