"""Counter-based Gumbel noise: a pure function of (seed, choice index, purpose, position, token id).

Owns the hash, which known-answer vectors fix for ever: an answer must survive an upgrade. Does not
know what the noise is used for. The arithmetic is on 32-bit words held in Python integers, int64
arrays or int64 tensors alike; a product that wraps around 64 bits keeps the right low 64 bits, and
every result is masked back to 32. So the integer bits are equal on every machine; the logarithms
behind them are float64 and agree to an ulp.

A row key comes from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011) with the seed as key; an id is then mixed with the two words of the row key through two
rounds of a 32-bit finaliser, which is a bijection of ids: five times cheaper than a Philox block an
id. Letters: N rows, C ids.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Word = TypeVar("Word", int, NDArray[np.int64], Tensor)  # 32 bits, in 64-bit or Python integers

NOISE_BITS = 23
NUM_BITS = 1 << NOISE_BITS
GUMBEL_MAX: float = -math.log(-math.log1p(-0.5 / NUM_BITS))  # the noise of the largest bits

_MASK = 0xFFFFFFFF
_PHILOX_ROUNDS = 10


class Purpose(IntEnum):
    """What a draw is for; draws of different purposes are independent. The values never change."""

    CHOICE = 0
    ACCEPTANCE = 1
    RESIDUAL = 2
    PROPOSAL = 3


def row_key(seed: Word, choice_index: Word, purpose: Purpose, position: Word) -> tuple[Word, Word]:
    """Two 32-bit words that stand for everything but the token id.

    ``seed`` has 64 bits, unsigned or in two's complement, ``choice_index`` and ``position`` 32.
    """
    zero = position & 0
    counter = (position & _MASK, choice_index & _MASK, zero + int(purpose), zero)
    words = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return words[0], words[1]


def id_bits(key: tuple[Word, Word] | tuple[int, int], ids: Word) -> Word:
    """The noise bits of ``ids`` under a row key, in [0, 2**23)."""
    return _mix(_mix(ids ^ key[0]) ^ key[1]) >> (32 - NOISE_BITS)


def hashed_bits(
    seeds: Tensor, choice_indices: Tensor, purpose: Purpose, positions: Tensor, ids: Tensor
) -> Tensor:
    """Noise bits of every (row, id), int64 in [0, 2**23); all arguments int64 and broadcastable.

    Seeds above 2**63 - 1 are given in two's complement.
    """
    return id_bits(row_key(seeds, choice_indices, purpose, positions), ids)


def gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel noise -log(-log(u)), u = (bits + 1/2) / 2**23, in float64."""
    return -(-((bits.double() + 0.5) / NUM_BITS).log()).log()


def gumbel_array(bits: NDArray[np.int64]) -> NDArray[np.float64]:
    """``gumbel`` for an array of host memory."""
    noise: NDArray[np.float64] = -np.log(-np.log((bits + 0.5) / NUM_BITS))
    return noise


def least_bits(noise: float) -> int:
    """Bits below this value have a noise below ``noise``; the bound is loose by a few bits."""
    return math.floor(NUM_BITS * math.exp(-math.exp(-noise))) - 2


def philox(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four random words of a 128-bit counter under a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0 = ((right >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((left >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = right & _MASK, left & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def _mix(word: Word) -> Word:
    """A bijection of 32-bit words (Wellons' lowbias32: every input bit flips each output bit)."""
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _MASK
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _MASK
    return word ^ (word >> 16)
