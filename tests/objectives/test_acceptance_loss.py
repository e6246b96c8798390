"""The loss of expected acceptance: its three laws, eagerly; gradient, saturation, truncation."""

import dataclasses

import pytest
import torch

from dvi.acceptance import coupled_acceptance, rejection_acceptance
from dvi.config import ObjectiveConfig
from dvi.objectives import Judged, total_loss
from dvi.objectives.accepted import (
    LOG_ZERO,
    blend,
    log_acceptance_coupled,
    log_acceptance_rejection,
    log_outcomes,
    negative_log,
)
from tests.objectives.reference import make_case

REGIMES = [
    "usual",
    "near-uniform",
    "draft saturated on the target's choice",
    "draft saturated elsewhere",
    "target saturated",
    "missing ids",
]


def lumped(probs, kept_ids):
    """[P, M + 1]: kept ids, then the rest as one outcome."""
    kept = torch.zeros_like(probs, dtype=torch.bool).scatter(1, kept_ids, True)
    return torch.cat([probs.gather(1, kept_ids), probs.masked_fill(kept, 0).sum(-1)[:, None]], -1)


def eager_rejection(p, q):
    return torch.minimum(p, q).sum(-1)


def eager_coupled(p, q):
    """The double sum as it is written, one pair (x, y) at a time by broadcasting: M^2."""
    possible = (p > 0) & (q > 0)
    safe_p, safe_q = torch.where(possible, p, 1.0), torch.where(possible, q, 1.0)
    ratios = torch.maximum(p[:, None, :] / safe_p[:, :, None], q[:, None, :] / safe_q[:, :, None])
    return torch.where(possible, 1 / ratios.sum(-1), 0.0).sum(-1)


EAGER = {"rejection": eager_rejection, "coupled": eager_coupled}


def eager_alpha(case, logits, mode):
    """The law over kept ids and tail for sampled rows, the committed token's for greedy ones."""
    draft, target = logits.softmax(-1), case.target_logits.softmax(-1)
    ids = case.teacher.top_ids
    sampled = EAGER[mode](lumped(target, ids), lumped(draft, ids))
    rows = torch.arange(len(logits))
    return torch.where(case.teacher.greedy, draft[rows, case.teacher.committed], sampled)


def lk_config(mode, form="log", **other):
    weights = {"kl_weight": 0.0, "ce_weight": 0.0, "lk_weight": 1.0}
    return ObjectiveConfig(**weights, lk_mode=mode, lk_form=form, **other)


def run(case, config, dtype=torch.float64):
    leaf = case.logits.to(dtype).clone().requires_grad_()
    report = total_loss(leaf, case.teacher, case.judged, config, step=0, baseline=0.0)
    report.loss.backward()
    return report, leaf.grad


def nothing_judged(case):
    names = ("index", "token", "reward", "lag")
    return Judged(*(getattr(case.judged, name)[:0] for name in names))


@pytest.mark.parametrize("num_kept", [1, 7, 40])
@pytest.mark.parametrize("regime", ["usual", "near-uniform", "missing ids"])
@pytest.mark.parametrize("mode", EAGER)
def test_minus_log_acceptance_equals_the_eager_law_in_value_and_gradient(mode, regime, num_kept):
    case = make_case(regime, num_kept)
    report, gradient = run(case, lk_config(mode))
    leaf = case.logits.clone().requires_grad_()
    expected = -eager_alpha(case, leaf, mode).log().mean()
    (expected_gradient,) = torch.autograd.grad(expected, leaf)
    assert report.lk == pytest.approx(float(expected.detach()), abs=1e-11)
    # float64: both laws in another order of sums; rows of 40 ids, so entries far above 1e-12
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=1e-8)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("form", ["log", "blend"])
@pytest.mark.parametrize("mode", EAGER)
def test_value_and_gradient_stay_finite_and_float32_is_near_float64(mode, form, regime):
    case = make_case(regime, 7)
    single = dataclasses.replace(
        case,
        teacher=dataclasses.replace(
            case.teacher,
            top_logits=case.teacher.top_logits.float(),
            logsumexp=case.teacher.logsumexp.float(),
        ),
    )
    report, gradient = run(case, lk_config(mode, form))
    report32, gradient32 = run(single, lk_config(mode, form), torch.float32)
    assert gradient.isfinite().all()
    # a float32 log-probability of logits up to 200 is exact to about 2e-5; p_tail, one minus the
    # kept mass, to 1e-7, which is all of it where the target is sure
    assert report32.lk == pytest.approx(report.lk, rel=1e-3, abs=1e-4)
    torch.testing.assert_close(gradient32.double(), gradient, atol=5e-4 / 30, rtol=5e-3)


@pytest.mark.parametrize("mode", EAGER)
def test_the_law_equals_the_one_that_the_engine_is_measured_by(mode):
    case = make_case("usual", 40)
    law = {"rejection": rejection_acceptance, "coupled": coupled_acceptance}[mode]
    target, draft = case.target_logits.softmax(-1), case.logits.softmax(-1)
    sampled = dataclasses.replace(
        case, teacher=dataclasses.replace(case.teacher, greedy=torch.zeros(30, dtype=torch.bool))
    )
    report, _ = run(sampled, lk_config(mode))
    assert report.lk == pytest.approx(float(-law(target, draft).log().mean()), abs=1e-11)


@pytest.mark.parametrize("law", [log_acceptance_rejection, log_acceptance_coupled])
def test_gradient_equals_finite_differences(law):
    generator = torch.Generator().manual_seed(5)
    target, draft = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    target = target.log_softmax(-1)
    torch.autograd.gradcheck(lambda q: law(target, q.log_softmax(-1)), draft.requires_grad_())


def test_gradient_of_the_blend_takes_its_weight_as_a_constant():
    kl = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    log_alpha = torch.tensor([-1.2], dtype=torch.float64, requires_grad=True)
    value = blend(kl, log_alpha, decay=2.0)
    value.backward()
    alpha = torch.tensor(-1.2, dtype=torch.float64).exp()
    weight = (-2.0 * alpha).exp()
    torch.testing.assert_close(value.detach()[0], weight * 0.7 + (1 - weight) * (1 - alpha))
    torch.testing.assert_close(kl.grad[0], weight)
    torch.testing.assert_close(log_alpha.grad[0], -(1 - weight) * alpha)


def test_the_blend_is_kl_where_nothing_is_accepted_and_needs_no_kl_where_all_is():
    kl = torch.tensor([2.0, 2.0], dtype=torch.float64)
    value = blend(kl, torch.tensor([LOG_ZERO, 0.0], dtype=torch.float64), decay=30.0)
    torch.testing.assert_close(
        value, torch.tensor([2.0, 0.0], dtype=torch.float64), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("mode", EAGER)
def test_truncation_only_raises_acceptance_and_by_no_more_than_the_shared_tail(mode, regime):
    factor = {"rejection": 1, "coupled": 2}[mode]
    for num_kept in (1, 3, 10, 39):
        case = make_case(regime, num_kept)
        target, draft = case.target_logits.softmax(-1), case.logits.softmax(-1)
        p, q = lumped(target, case.teacher.top_ids), lumped(draft, case.teacher.top_ids)
        log_law = {"rejection": log_acceptance_rejection, "coupled": log_acceptance_coupled}[mode]
        outcomes = [log_outcomes(x[:, :-1].log(), x[:, -1].log()) for x in (p, q)]
        bias = log_law(*outcomes).exp() - EAGER[mode](target, draft)
        bound = factor * torch.minimum(p[:, -1], q[:, -1])
        assert (bias >= -1e-12).all()
        assert (bias <= bound + 1e-12).all()


@pytest.mark.parametrize("law", [log_acceptance_rejection, log_acceptance_coupled])
def test_where_nothing_is_accepted_the_gradient_is_that_of_cross_entropy(law):
    """1 - alpha is flat there (alpha is e^-80); its logarithm pulls at full strength."""
    target = torch.tensor([[0.0, -200.0, -200.0]]).log_softmax(-1)
    draft = torch.tensor([[-60.0, 20.0, 0.0]], requires_grad=True)
    loss = negative_log(law(target, draft.log_softmax(-1))).sum()
    (gradient,) = torch.autograd.grad(loss, draft)
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, 1.0, 0.0]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", ["log", "blend"])
@pytest.mark.parametrize("mode", EAGER)
def test_descent_raises_acceptance_to_one(mode, form):
    case = make_case("usual", 40)
    logits = case.logits.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    before = eager_alpha(case, case.logits, mode)
    for step in range(300):
        optimizer.zero_grad()
        config = lk_config(mode, form)
        total_loss(
            logits, case.teacher, case.judged, config, step=step, baseline=0.0
        ).loss.backward()
        optimizer.step()
    after = eager_alpha(case, logits.detach(), mode)
    sampled = ~case.teacher.greedy
    assert (before[sampled] < 0.9).all()
    assert float(after[sampled].min()) > 0.95  # Adam at .1 jitters about the optimum
    if form == "log":
        assert float(after.min()) > 0.95  # greedy rows: all mass on the committed token


def test_a_term_of_weight_zero_is_left_out_even_where_it_is_infinite():
    case = make_case("usual", 7)
    logits = case.logits.clone()
    rows = torch.arange(len(logits))
    elsewhere = ~(case.teacher.top_ids == case.teacher.committed[:, None]).any(-1)
    assert elsewhere.any()
    logits[rows[elsewhere], case.teacher.committed[elsewhere]] = -torch.inf
    leaf = logits.requires_grad_()
    judged = nothing_judged(case)
    config = ObjectiveConfig(ce_weight=0.0)
    report = total_loss(leaf, case.teacher, judged, config, step=0, baseline=0.0)
    report.loss.backward()
    assert report.ce == float("inf")
    assert report.loss.isfinite()
    assert leaf.grad.isfinite().all()


def test_ids_may_count_in_any_subset_of_the_vocabulary():
    """Rows of ids that no teacher names may go, where the draft gives them nothing."""
    case = make_case("usual", 7)
    logits = case.logits.clone()
    used = torch.cat([case.teacher.top_ids.flatten(), case.teacher.committed]).unique()
    unused = torch.ones(40, dtype=torch.bool).index_fill(0, used, False)
    if not unused.any():
        unused[0] = False
    logits[:, unused] = -torch.inf
    place = torch.full((40,), -1).index_copy(0, used, torch.arange(len(used)))
    small = dataclasses.replace(
        case.teacher,
        top_ids=place[case.teacher.top_ids],
        committed=place[case.teacher.committed],
    )
    none = nothing_judged(case)
    config = lk_config("coupled")
    whole = total_loss(logits, case.teacher, none, config, step=0, baseline=0.0)
    part = total_loss(logits[:, used], small, none, config, step=0, baseline=0.0)
    assert part.lk == pytest.approx(whole.lk, abs=1e-12)
