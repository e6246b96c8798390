"""The two-stage search for the largest logits against a whole sort."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dvi.native.library import library
from dvi.native.top import top_candidates
from dvi.sampling.top import (
    _top_of_device,
    largest_first,
    largest_ids,
    log_mass,
    top_logits,
)


def sorted_ids(row, count):
    return sorted(range(len(row)), key=lambda token_id: (-row[token_id], token_id))[:count]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 700),
    count=st.integers(1, 12),
    levels=st.sampled_from([2, 5, 1000]),  # few levels: most values tie
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_the_largest_are_those_of_a_whole_sort_and_the_lowest_id_wins_a_tie(
    seed, size, count, levels, dtype
):
    row = np.random.default_rng(seed).integers(0, levels, size).astype(dtype)
    row[0] = -math.inf if size > 1 else 0.0
    assert largest_ids(row, count).tolist() == sorted_ids(row, count)


@pytest.mark.skipif(library() is None, reason="no compiled kernels for this machine")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 3000),
    count=st.integers(1, 64),
    levels=st.sampled_from([2, 5, 1000]),
)
def test_compiled_candidates_hold_the_largest_and_little_more(seed, size, count, levels):
    rng = np.random.default_rng(seed)
    row = (rng.integers(-levels, levels, size) / 7).astype(np.float32)
    row[rng.random(size) < 0.1] = -0.0
    row[rng.random(size) < 0.1] = -math.inf
    row[rng.integers(size)] = levels
    count = min(count, size)
    ids, mass = top_candidates(row, count)
    assert largest_first(row, ids, count).tolist() == sorted_ids(row, count)
    assert np.all(np.diff(ids) > 0)
    assert mass == pytest.approx(log_mass(row, row.max()), abs=1e-5)
    if levels == 1000 and size >= 64 * count:
        assert len(ids) < size / 2  # the column maxima say where to look


@pytest.mark.parametrize("is_compiled", [True, False])
def test_both_zeros_are_one_value(is_compiled, monkeypatch):
    if not is_compiled:
        monkeypatch.setattr("dvi.sampling.top.top_candidates", lambda *_: None)
    row = torch.full((1, 64 * 8), -0.0)
    row[0, 63::64] = 0.0  # the largest of each 64, were it larger than the other zero
    assert top_logits([row], 4).ids.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_with_and_without_kernels_the_same_is_kept(is_compiled, monkeypatch):
    logits = 5 * torch.randn(2, 4099, generator=torch.Generator().manual_seed(3))
    if not is_compiled:
        monkeypatch.setattr("dvi.sampling.top.top_candidates", lambda *_: None)
    top = top_logits([logits], 64)
    for place, row in enumerate(logits.numpy()):
        assert top.ids[place].tolist() == sorted_ids(row, 64)
    want = np.log(np.exp(logits.double().numpy()).sum(-1))
    np.testing.assert_allclose(top.logsumexp, want, rtol=0, atol=1e-5)


def test_largest_that_share_a_column_are_all_found():
    row = np.zeros(64 * 10, dtype=np.float32)
    row[3::10] = np.arange(1, 65)  # one column holds the 64 largest
    assert largest_ids(row, 8).tolist() == [3 + 10 * place for place in range(63, 55, -1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_memories_keep_the_same(dtype):
    logits = 5 * torch.randn(3, 4099, generator=torch.Generator().manual_seed(1), dtype=dtype)
    logits[:, 4000:] = -math.inf  # ids that do not exist
    host, device = top_logits([logits[:1], logits[1:]], 64), _top_of_device(logits, 64)
    assert np.array_equal(host.ids, device.ids)
    assert np.array_equal(host.logits, device.logits)
    # Sums of 4,099 float32 terms in another order: some 1e-6.
    np.testing.assert_allclose(host.logsumexp, device.logsumexp, rtol=0, atol=1e-5)
    want = np.log(np.exp(logits.double().numpy()).sum(-1))
    np.testing.assert_allclose(host.logsumexp, want, rtol=0, atol=1e-5)
    assert [field.dtype for field in (host.ids, host.logits, host.logsumexp)] == [
        np.int32,
        np.float32,
        np.float32,
    ]


def test_a_vocabulary_smaller_than_asked_for_is_kept_whole():
    top = top_logits([torch.tensor([[1.0, 3.0, 2.0]])], 64)
    assert top.ids.tolist() == [[1, 2, 0]]
    assert top.logits.tolist() == [[3.0, 2.0, 1.0]]
