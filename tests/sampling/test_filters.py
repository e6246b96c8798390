"""The truncation border against the kept sets of the specification."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dvi.sampling.filters import (
    at_least,
    ids_at_least,
    kth_largest,
    least_value,
    nucleus_border,
    truncation_border,
)
from dvi.types import SamplingParams
from tests.sampling.reference import kept_ids


def kept_by_border(row, params):
    border = truncation_border(row, params)
    return {token_id for token_id in range(len(row)) if -math.inf < row[token_id] >= border}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    logits=st.lists(
        st.one_of(
            st.floats(-20, 20, width=32, allow_subnormal=False),
            st.sampled_from([-math.inf, 0.0, 1.0, 1.0, 2.0]),
        ),
        min_size=1,
        max_size=40,
    ).filter(lambda values: max(values) > -math.inf),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 1e-4, 0.2, 1.0]),
)
def test_border_keeps_exactly_the_specified_ids(logits, temperature, top_k, top_p, min_p):
    row = np.array(logits, dtype=np.float32)
    params = SamplingParams(1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert kept_by_border(row, params) == kept_ids(row, params)


def test_top_p_counts_the_mass_that_top_k_left():
    row = np.log(np.array([0.4, 0.2 + 1e-9, 0.2, 0.1 + 1e-9, 0.1]))
    # of all mass .4 + .2 + .2 = .8 needs three ids to reach .65; of the top two, .4 / .6 > .65
    assert kept_by_border(row, SamplingParams(1, top_p=0.65)) == {0, 1, 2}
    assert kept_by_border(row, SamplingParams(1, top_k=2, top_p=0.65)) == {0}


def test_min_p_comes_last_and_is_relative_to_the_top_probability():
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    assert kept_by_border(row, SamplingParams(1, min_p=0.31)) == {0, 1}
    # were min-p first, .8 would be .84 of the .95 it leaves: enough for .83, but not of all mass
    assert kept_by_border(row, SamplingParams(1, top_p=0.79, min_p=0.2)) == {0, 1}
    assert kept_by_border(row, SamplingParams(1, top_p=0.83, min_p=0.2)) == {0, 1, 2}


def test_filters_act_on_logits_over_temperature():
    row = np.log(np.array([0.5, 0.3, 0.2]))  # at T = 1/2: .66 .24 .11
    assert kept_by_border(row, SamplingParams(1, temperature=0.5, top_p=0.6)) == {0}
    assert kept_by_border(row, SamplingParams(1, temperature=1.0, top_p=0.6)) == {0, 1}
    assert kept_by_border(row, SamplingParams(1, temperature=0.5, min_p=0.5)) == {0}  # .36
    assert kept_by_border(row, SamplingParams(1, temperature=1.0, min_p=0.5)) == {0, 1}  # .6


def test_ties_at_a_border_are_kept_together():
    row = np.array([2.0, 1.0, 1.0, 1.0, 0.0], dtype=np.float32)
    assert kept_by_border(row, SamplingParams(1, top_k=2)) == {0, 1, 2, 3}
    assert kept_by_border(row, SamplingParams(1, top_p=0.6)) == {0, 1, 2, 3}


def test_a_prefix_that_holds_exactly_top_p_is_enough():
    row = np.array([0.0, -np.log(2), -np.log(2)])  # masses 1, 1/2, 1/2, exactly
    assert kept_by_border(row, SamplingParams(1, top_p=0.5)) == {0}
    assert kept_by_border(row, SamplingParams(1, top_p=0.5 + 1e-12)) == {0, 1, 2}


def test_a_nucleus_wider_than_the_first_head_is_found():
    row = np.random.default_rng(0).normal(0, 0.1, 30_000).astype(np.float32)
    for top_p in (0.01, 0.5, 0.95):
        ordered = np.sort(row)[::-1].astype(np.float64)
        share = np.cumsum(np.exp(ordered)) / np.exp(ordered).sum()
        assert nucleus_border(row, 1.0, top_p) == ordered[np.argmax(share >= top_p)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_comparing_with_the_least_value_is_comparing_with_the_limit(dtype):
    row = np.array([0.1, 0.2, 0.3], dtype=dtype)
    for value in row.astype(np.float64):
        for limit in (value - 1e-12, value, value + 1e-12):
            exact = [float(z) >= limit for z in row]
            assert (row >= least_value(row, limit)).tolist() == exact
            assert ids_at_least(row, limit).tolist() == np.flatnonzero(exact).tolist()
    assert at_least(row, -math.inf).tolist() == row.tolist()


def test_kth_largest_counts_equal_values_one_by_one():
    row = np.array([3.0, 1.0, 3.0, 2.0, 2.0])
    assert [kth_largest(row, k) for k in range(1, 6)] == [3.0, 3.0, 2.0, 2.0, 1.0]
