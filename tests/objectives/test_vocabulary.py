"""The sums over a vocabulary: gradient by finite differences, chunks, and memory."""

import pytest
import torch

from dvi.objectives import vocabulary
from dvi.objectives.vocabulary import vocab_sums


def inputs(num_rows, num_ids, num_kept, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, num_ids, generator=generator, dtype=torch.float64)
    kept = torch.stack(
        [torch.randperm(num_ids, generator=generator)[:num_kept] for _ in range(num_rows)]
    )
    picked = torch.stack(
        [
            torch.randint(num_rows, (9,), generator=generator),
            torch.randint(num_ids, (9,), generator=generator),
        ]
    )
    picked[:, -1] = picked[:, 0]  # a pair that repeats
    return logits, kept, picked


def test_sums_are_what_their_names_say():
    logits, kept, picked = inputs(6, 20, 4)
    sums = vocab_sums(logits, kept, picked, with_entropy=True)
    others = logits.scatter(1, kept, -torch.inf)
    torch.testing.assert_close(sums.kept, logits.gather(1, kept))
    torch.testing.assert_close(sums.picked, logits[picked[0], picked[1]])
    torch.testing.assert_close(sums.tail, others.logsumexp(-1))
    torch.testing.assert_close(
        sums.entropy, torch.distributions.Categorical(logits=logits).entropy()
    )
    torch.testing.assert_close(sums.top, logits.amax(-1))


@pytest.mark.parametrize("with_entropy", [False, True])
def test_gradient_equals_finite_differences(with_entropy):
    logits, kept, picked = inputs(3, 7, 2)

    def outputs(values):
        sums = vocab_sums(values, kept, picked, with_entropy=with_entropy)
        return sums.kept, sums.picked, sums.tail, sums.entropy

    torch.autograd.gradcheck(outputs, (logits.requires_grad_(),))


def test_chunking_changes_nothing(monkeypatch):
    logits, kept, picked = inputs(23, 31, 5)
    results = []
    for elements in (1 << 18, 100, 1):
        monkeypatch.setattr(vocabulary, "_CHUNK_ELEMENTS", elements)
        leaf = logits.clone().requires_grad_()
        sums = vocab_sums(leaf, kept, picked, with_entropy=True)
        (sums.kept.sum() + sums.picked.sum() + sums.tail.sum() + sums.entropy.sum()).backward()
        results.append((sums.tail.detach(), sums.entropy.detach(), leaf.grad))
    for result in results[1:]:
        for expected, actual in zip(results[0], result, strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-13, rtol=0)


def test_a_tail_that_underflows_stays_finite_with_a_finite_gradient():
    logits = torch.tensor([[300.0, 0.0, 0.0, -torch.inf]], requires_grad=True)
    sums = vocab_sums(
        logits, torch.tensor([[0]]), torch.empty(2, 0, dtype=torch.long), with_entropy=True
    )
    assert float(sums.tail.detach()) == pytest.approx(300 - 87.3, abs=0.1)  # log of 1.2e-38
    (sums.tail.sum() + sums.entropy.sum()).backward()
    assert logits.grad.isfinite().all()


def test_with_all_ids_kept_there_is_no_tail_to_speak_of():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    kept = torch.arange(5).expand(4, -1)
    sums = vocab_sums(logits, kept, torch.empty(2, 0, dtype=torch.long), with_entropy=False)
    assert bool((sums.tail < sums.top - 80).all())
    sums.tail.sum().backward()
    assert not logits.grad.any()


def test_memory_beside_the_logits_is_their_gradient():
    """Counted by the allocator's own profiler: no second tensor of the logits' size."""
    logits = torch.randn(64, 20_000, requires_grad=True)
    kept = torch.arange(8).expand(64, -1)
    picked = torch.stack([torch.arange(64), torch.arange(64)])
    with torch.profiler.profile(profile_memory=True) as profile:
        sums = vocab_sums(logits, kept, picked, with_entropy=True)
        (sums.tail.sum() + sums.entropy.sum() + sums.kept.sum()).backward()
    size = logits.numel() * 4
    large = [
        event.self_cpu_memory_usage
        for event in profile.events()
        if event.self_cpu_memory_usage >= size
    ]
    assert large == [size]
