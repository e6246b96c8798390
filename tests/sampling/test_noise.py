"""The noise: fixed for ever, uniform, and uncorrelated across everything it depends on."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dvi.sampling import GUMBEL_MAX, Purpose, gumbel, hashed_bits
from dvi.sampling.noise import NUM_BITS, gumbel_array, id_bits, least_bits, philox, row_key

FALSE_ALARM = 1e-6  # of each statistical check; seeds are fixed, so a pass stays a pass


def bits_of(*, seed=0, choice=0, purpose=Purpose.CHOICE, position=0, ids=0):
    seeds, choices, positions, id_tensor = (
        torch.as_tensor(value) for value in (seed, choice, position, ids)
    )
    return hashed_bits(seeds, choices, purpose, positions, id_tensor)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # published with the generator (Random123, kat_vectors)
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_row_keys_come_from_the_published_philox(counter, key, words):
    assert philox(counter, key) == words


KNOWN_BITS = [  # (seed, choice index, purpose, position) -> bits of ids 0, 1, 49151, 151935
    ((0, 0, Purpose.CHOICE, 0), [4500430, 3324004, 6087099, 4825410]),
    ((1, 0, Purpose.CHOICE, 0), [2028556, 4156626, 7683522, 467888]),
    ((0xFFFFFFFFFFFFFFFF, 0, Purpose.CHOICE, 1023), [643571, 5861856, 2828418, 419305]),
    ((0x123456789ABCDEF, 3, Purpose.CHOICE, 2047), [1992651, 5040918, 6858108, 2084566]),
    ((42, 0, Purpose.ACCEPTANCE, 7), [6474739, 5317413, 6866168, 1802661]),
    ((42, 0, Purpose.RESIDUAL, 7), [6519560, 599324, 8141125, 5727281]),
    ((42, 0, Purpose.PROPOSAL, 7), [2050702, 418385, 4031962, 4795025]),
]


@pytest.mark.parametrize(("row", "expected"), KNOWN_BITS)
def test_known_answers_never_change(row, expected):
    seed, choice, purpose, position = row
    ids = np.array([0, 1, 49_151, 151_935])
    assert id_bits(row_key(seed, choice, purpose, position), ids).tolist() == expected


@pytest.mark.parametrize("row", [row for row, _ in KNOWN_BITS])
def test_integers_arrays_and_tensors_hash_alike(row):
    seed, choice, purpose, position = row
    ids = list(range(40))
    key = row_key(seed, choice, purpose, position)
    one_by_one = [id_bits(key, token_id) for token_id in ids]
    signed = seed - (1 << 64) if seed >= 1 << 63 else seed  # two's complement
    tensor = bits_of(
        seed=signed, choice=choice, purpose=purpose, position=position, ids=torch.tensor(ids)
    )
    assert one_by_one == id_bits(key, np.array(ids)).tolist() == tensor.tolist()


def test_gumbel_is_the_double_logarithm_of_the_middle_of_its_cell():
    bits = torch.tensor([0, 1, NUM_BITS // 2, NUM_BITS - 1])
    expected = [-math.log(-math.log((b + 0.5) / 2**23)) for b in bits.tolist()]
    # a few ulps of values up to 17
    assert gumbel(bits).tolist() == pytest.approx(expected, abs=2e-14)
    assert gumbel_array(bits.numpy()).tolist() == pytest.approx(expected, abs=2e-14)
    assert gumbel(bits).dtype == torch.float64


def test_gumbel_max_is_the_largest_noise_there_is():
    largest = float(gumbel(torch.tensor(NUM_BITS - 1)))
    assert largest == pytest.approx(GUMBEL_MAX, abs=2e-14)
    assert largest == pytest.approx(24 * math.log(2), abs=1e-6)  # -log(1 - 2^-24) = 2^-24


@pytest.mark.parametrize("noise", [-2.0, -1.0, 0.0, 3.0, 6.0, 12.0])
def test_bits_under_the_least_have_less_noise(noise):
    least = least_bits(noise)
    assert float(gumbel_array(np.array(least - 1))) < noise
    assert float(gumbel_array(np.array(least + 4))) >= noise  # and the bound is not much too low


STREAMS = {  # 2^20 draws along one argument, the others fixed
    "ids": {"ids": torch.arange(1 << 20), "seed": 11, "position": 5},
    "positions": {"position": torch.arange(1 << 20), "seed": 11, "ids": 7},
    "seeds": {"seed": torch.arange(1 << 20), "position": 5, "ids": 7},
    "high seeds": {"seed": torch.arange(1 << 20) << 32, "position": 5, "ids": 7},
    "choices": {"choice": torch.arange(1 << 20), "seed": 11, "ids": 7},
    "a grid": {
        "seed": torch.arange(64)[:, None, None],
        "position": torch.arange(64)[None, :, None],
        "ids": torch.arange(256),
    },
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("shift", [0, 13], ids=["low bits", "high bits"])
def test_bits_are_uniform_along_every_argument(name, shift):
    bits = bits_of(**STREAMS[name]).flatten()
    assert int(bits.min()) >= 0
    assert int(bits.max()) < NUM_BITS
    cells = (bits >> shift) & 1023
    counts = torch.bincount(cells, minlength=1024).numpy()
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", STREAMS)
def test_the_tail_that_decides_choices_has_its_share(name):
    bits = bits_of(**STREAMS[name]).flatten()
    for log_share in (10, 14):  # the largest 2^-10 and 2^-14 of the values
        hits = int((bits >= NUM_BITS - (NUM_BITS >> log_share)).sum())
        test = stats.binomtest(hits, bits.numel(), 2.0**-log_share)
        assert test.pvalue > FALSE_ALARM


RANGE = torch.arange(1 << 18)
NEIGHBOURS = {  # pairs of 2^18 draws that differ in one argument
    "next id": ({"ids": RANGE}, {"ids": RANGE + 1}),
    "next position": (
        {"ids": RANGE, "position": 9},
        {"ids": RANGE, "position": 10},
    ),
    "next id at the next position": (
        {"ids": RANGE, "position": 9},
        {"ids": RANGE + 1, "position": 10},
    ),
    "next seed": (
        {"ids": RANGE, "seed": 4},
        {"ids": RANGE, "seed": 5},
    ),
    "seed with the top bit": (
        {"ids": RANGE, "seed": 4},
        {"ids": RANGE, "seed": 4 - (1 << 63)},
    ),
    "next choice": (
        {"ids": RANGE, "choice": 0},
        {"ids": RANGE, "choice": 1},
    ),
    "seed and position exchanged": (
        {"ids": RANGE, "seed": 3, "position": 8},
        {"ids": RANGE, "seed": 8, "position": 3},
    ),
    "position and choice exchanged": (
        {"ids": RANGE, "choice": 1, "position": 0},
        {"ids": RANGE, "choice": 0, "position": 1},
    ),
    **{
        f"choice and {purpose.name.lower()}": (
            {"ids": RANGE},
            {"ids": RANGE, "purpose": purpose},
        )
        for purpose in list(Purpose)[1:]
    },
    "neighbouring seeds at one id": (
        {"seed": RANGE, "ids": 3},
        {"seed": RANGE + 1, "ids": 3},
    ),
    "neighbouring positions at one id": (
        {"position": RANGE, "ids": 3},
        {"position": RANGE + 1, "ids": 3},
    ),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_are_uncorrelated(name):
    first, second = (bits_of(**arguments).flatten().double() for arguments in NEIGHBOURS[name])
    # independent: r * sqrt(n) is standard normal
    correlation = float(torch.corrcoef(torch.stack([first, second]))[0, 1])
    assert abs(correlation) * math.sqrt(first.numel()) < stats.norm.isf(FALSE_ALARM / 2)
    # and no dependence that a correlation misses: counts over a 32 x 32 grid of the top bits
    cells = (first.long() >> 18) * 32 + (second.long() >> 18)
    assert stats.chisquare(torch.bincount(cells, minlength=1024).numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_each_bit_is_independent_of_the_neighbours_bits(name):
    first, second = (bits_of(**arguments).flatten() for arguments in NEIGHBOURS[name])
    places = torch.arange(23)
    signs = [2.0 * ((bits[:, None] >> places) & 1).float() - 1 for bits in (first, second)]
    agreement = (signs[0].T @ signs[1]) / math.sqrt(first.numel())  # [23, 23], standard normal
    bound = stats.norm.isf(FALSE_ALARM / 2 / 23**2)  # all 529 together have the stated rate
    assert float(agreement.abs().max()) < bound


def test_sequences_of_ids_have_the_runs_of_independent_draws():
    bits = bits_of(ids=torch.arange(1 << 20), seed=2, position=77)
    # lag-1..64 autocorrelation; all 64 together have the stated rate
    centred = bits.double() - bits.double().mean()
    variance = float((centred**2).mean())
    bound = stats.norm.isf(FALSE_ALARM / 2 / 64)
    for lag in range(1, 65):
        mean = float((centred[lag:] * centred[:-lag]).mean())
        assert abs(mean / variance) * math.sqrt(len(centred) - lag) < bound


def test_all_purposes_have_their_fixed_values():
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "CHOICE": 0,
        "ACCEPTANCE": 1,
        "RESIDUAL": 2,
        "PROPOSAL": 3,
    }
