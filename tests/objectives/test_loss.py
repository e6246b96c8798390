"""Value and gradient of the loss against the eager specification, and what it promises."""

import dataclasses

import pytest
import torch

from dvi.config import ObjectiveConfig
from dvi.objectives import Judged, total_loss
from tests.objectives.reference import eager_terms, make_case

REGIMES = [
    "usual",
    "near-uniform",
    "draft saturated on the target's choice",
    "draft saturated elsewhere",
    "target saturated",
    "missing ids",
]
TERMS = {  # name in the report -> weight in the config
    "kl": "kl_weight",
    "ce": "ce_weight",
    "reward_ce": "reward_ce_weight",
    "pg": "pg_weight",
    "entropy": "entropy_weight",
    "osd": "osd_weight",
}


def only(term, weight=1.0):
    weights = dict.fromkeys(TERMS.values(), 0.0)
    return ObjectiveConfig(**{**weights, TERMS[term]: weight})


def value_and_gradient(logits, case, config, step=0, baseline=0.3):
    leaf = logits.detach().clone().requires_grad_()
    report = total_loss(leaf, case.teacher, case.judged, config, step=step, baseline=baseline)
    report.loss.backward()
    return report, leaf.grad


@pytest.mark.parametrize("num_kept", [1, 7, 40])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("term", TERMS)
def test_each_term_equals_the_eager_one_in_value_and_gradient(term, regime, num_kept):
    case = make_case(regime, num_kept)
    config = only(term)
    report, gradient = value_and_gradient(case.logits, case, config)
    leaf = case.logits.clone().requires_grad_()
    expected = eager_terms(case, leaf, config, baseline=0.3)[term]
    sign = -1 if term == "entropy" else 1  # a bonus
    (expected_gradient,) = torch.autograd.grad(sign * expected, leaf)
    expected = expected.detach()
    # float64 against float64; one minus the kept mass of the target rounds at 1e-16 and meets
    # logs of the draft's tail of up to 700
    assert float(report.loss.detach()) == pytest.approx(sign * float(expected), abs=1e-11)
    assert getattr(report, term) == pytest.approx(float(expected), abs=1e-11)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("regime", REGIMES)
def test_float32_is_near_float64_and_finite(regime):
    case = make_case(regime, 7)
    config = ObjectiveConfig(
        ce_weight=0.5, reward_ce_weight=0.2, pg_weight=0.3, entropy_weight=0.1, kl_floor=0.5
    )
    report, gradient = value_and_gradient(case.logits, case, config)
    single = dataclasses.replace(
        case,
        teacher=dataclasses.replace(
            case.teacher,
            top_logits=case.teacher.top_logits.float(),
            logsumexp=case.teacher.logsumexp.float(),
        ),
    )
    report32, gradient32 = value_and_gradient(case.logits.float(), single, config)
    assert report32.loss.dtype == torch.float32
    # logits reach 200, so a float32 log-probability is exact to about 2e-5, a probability likewise
    assert float(report32.loss.detach()) == pytest.approx(float(report.loss.detach()), rel=1e-4)
    torch.testing.assert_close(gradient32.double(), gradient, atol=1e-4 / 30, rtol=1e-3)


def test_the_loss_is_the_weighted_sum_under_the_schedule():
    case = make_case("usual", 7)
    config = ObjectiveConfig(
        kl_weight=0.7,
        ce_weight=0.5,
        reward_ce_weight=0.2,
        pg_weight=0.3,
        entropy_weight=0.1,
        warmup_steps=10,
        ramp_steps=20,
        kl_floor=0.25,
        osd_weight=0.4,
    )
    for step, ramp in ((0, 0.0), (10, 0.0), (15, 0.25), (30, 1.0), (99, 1.0)):
        report, _ = value_and_gradient(case.logits, case, config, step=step)
        terms = eager_terms(case, case.logits, config, baseline=0.3)
        kl_share = (1 - ramp) + ramp * 0.25
        expected = 0.7 * kl_share * terms["kl"] + 0.5 * terms["ce"] + 0.4 * terms["osd"]
        expected += ramp * (0.2 * terms["reward_ce"] + 0.3 * terms["pg"] - 0.1 * terms["entropy"])
        assert float(report.loss.detach()) == pytest.approx(float(expected), abs=1e-11)


def test_forward_kl_alone_pulls_the_draft_to_the_target():
    case = make_case("usual", 40)
    logits = case.logits.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.1)
    config = ObjectiveConfig(ce_weight=0.0)
    for step in range(400):
        optimizer.zero_grad()
        report = total_loss(logits, case.teacher, case.judged, config, step=step, baseline=0.0)
        report.loss.backward()
        optimizer.step()
    distance = (logits.detach().softmax(-1) - case.target_logits.softmax(-1)).abs()
    assert float(distance.max()) < 0.01  # 400 steps of .1 carry every logit far enough for that
    assert report.agreement == 1.0


def test_lumping_the_tail_only_lowers_the_divergence():
    previous = 0.0
    for num_kept in (1, 3, 10, 25, 40):
        case = make_case("usual", num_kept)
        report, _ = value_and_gradient(case.logits, case, ObjectiveConfig())
        assert report.kl >= previous
        previous = report.kl


def test_agreement_is_the_share_of_equal_arg_maxima():
    case = make_case("usual", 7)
    report, _ = value_and_gradient(case.logits, case, ObjectiveConfig())
    expected = (case.logits.argmax(-1) == case.target_logits.argmax(-1)).double().mean()
    assert report.agreement == pytest.approx(float(expected))


def empty_judged():
    none = torch.empty(0, dtype=torch.long)
    return Judged(none, none, none, none)


def test_without_judged_proposals_the_reward_terms_are_zero():
    case = dataclasses.replace(make_case("usual", 7), judged=empty_judged())
    config = ObjectiveConfig(reward_ce_weight=1.0, pg_weight=1.0)
    report, gradient = value_and_gradient(case.logits, case, config)
    plain, plain_gradient = value_and_gradient(case.logits, case, ObjectiveConfig())
    assert (report.reward_ce, report.pg, report.reward, report.num_judged) == (0, 0, 0, 0)
    assert float(report.loss.detach()) == float(plain.loss.detach())
    assert torch.equal(gradient, plain_gradient)


def test_proposals_older_than_max_lag_are_left_out():
    case = make_case("usual", 7)
    config = ObjectiveConfig(reward_ce_weight=1.0, pg_weight=1.0, max_lag=2)
    fresh = case.judged.lag <= 2
    assert 0 < int(fresh.sum()) < len(fresh)
    young = Judged(
        *(getattr(case.judged, name)[fresh] for name in ("index", "token", "reward", "lag"))
    )
    report, gradient = value_and_gradient(case.logits, case, config)
    alone, alone_gradient = value_and_gradient(
        case.logits, dataclasses.replace(case, judged=young), config
    )
    assert report.num_judged == int(fresh.sum())
    assert float(report.loss.detach()) == float(alone.loss.detach())
    assert torch.equal(gradient, alone_gradient)


def test_the_policy_gradient_raises_what_was_accepted_and_lowers_what_was_rejected():
    case = make_case("usual", 7)
    judged = Judged(
        index=torch.tensor([0, 1]),
        token=torch.tensor([3, 4]),
        reward=torch.tensor([1, 0]),
        lag=torch.tensor([0, 0]),
    )
    case = dataclasses.replace(case, judged=judged)
    _, gradient = value_and_gradient(case.logits, case, only("pg"), baseline=0.4)
    assert gradient[0, 3] < 0 < gradient[1, 4]  # descent goes against the gradient
    assert not gradient[2:].any()
    # (r - b) (q - one hot) / J
    probs = case.logits[0].softmax(-1)
    assert float(gradient[0, 3]) == pytest.approx(-0.6 * (1 - float(probs[3])) / 2)


def test_the_policy_gradient_is_unbiased_for_samples_of_the_policy():
    """E_{a ~ q} of its gradient is -grad E_{a ~ q}[r(a)], whatever the baseline: summed exactly."""
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    reward = torch.tensor([1.0, 0, 1, 0, 0, 1], dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    (leaf.softmax(-1) * reward).sum().backward()
    case = make_case("usual", 3)
    for baseline in (0.0, 0.7):
        mean = torch.zeros_like(logits)
        for token in range(6):
            judged = Judged(
                torch.tensor([0]), torch.tensor([token]), reward[token : token + 1].long(),
                torch.tensor([0]),
            )  # fmt: skip
            teacher = dataclasses.replace(
                case.teacher,
                top_ids=torch.tensor([[0, 1, 2]]),
                top_logits=torch.zeros(1, 3, dtype=torch.float64),
                logsumexp=torch.ones(1, dtype=torch.float64) * 2,
                committed=torch.tensor([0]),
            )
            one = dataclasses.replace(case, teacher=teacher, judged=judged)
            _, gradient = value_and_gradient(logits, one, only("pg"), baseline=baseline)
            mean += logits.softmax(-1)[0, token] * gradient
        torch.testing.assert_close(mean, -leaf.grad, atol=1e-12, rtol=0)


def test_only_the_loss_carries_a_gradient_and_inputs_stay_as_they_are():
    case = make_case("usual", 7)
    before = case.logits.clone()
    with torch.no_grad():
        report = total_loss(
            case.logits, case.teacher, case.judged, ObjectiveConfig(), step=0, baseline=0.0
        )
    assert not report.loss.requires_grad
    assert torch.equal(case.logits, before)
    assert all(isinstance(getattr(report, name), float) for name in TERMS)


def test_the_gradient_scales_with_what_flows_back():
    case = make_case("usual", 7)
    leaf = case.logits.clone().requires_grad_()
    report = total_loss(leaf, case.teacher, case.judged, ObjectiveConfig(), step=0, baseline=0.0)
    (3 * report.loss).backward()
    _, gradient = value_and_gradient(case.logits, case, ObjectiveConfig())
    torch.testing.assert_close(leaf.grad, 3 * gradient, atol=1e-12, rtol=1e-12)
