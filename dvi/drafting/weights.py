"""A version of a learned draft, ready to run, and storage that recorded steps read it from.

Owns what a version consists of and the copies; does not know which kind of drafter it belongs to.
Letters: V head rows, R rows of a trimmed head, H hidden width, r head rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from dvi.drafting.base import DraftWeights
from dvi.drafting.branch import DraftBranch
from dvi.drafting.readout import Readout, TrimmedHead
from dvi.modeling.layer import Layer
from dvi.modeling.linear import Linear


@dataclass(frozen=True, slots=True)
class BranchWeights(DraftWeights):
    """One version: merged layers, none of ``head``, one of ``block``, all of ``model``."""

    layers: tuple[Layer, ...]
    readout: Readout


class Resident:
    """Weights that stay where they are, of the shapes that all versions of a drafter have."""

    def __init__(self, branch: DraftBranch, weights: BranchWeights) -> None:
        self._layers = tuple(map(_own_layer, weights.layers))
        self._readout = _own_readout(branch, weights.readout)

    def hold(self, weights: BranchWeights) -> BranchWeights:
        """Take a version over, some megabytes within the device, and give it back from here.

        Norms of the layers and biases are frozen and stay. Without low-rank factors, as version 0
        is, they are zero, which adds nothing.
        """
        for own, given in zip(self._layers, weights.layers, strict=True):
            for matrix, source in zip(own.matrices, given.matrices, strict=True):
                _linear(matrix).fill(_linear(source))
        mine, readout = self._readout, weights.readout
        mine.norm.copy_(readout.norm)
        _fill(mine.factor_a, readout.factor_a)
        _fill(mine.factor_b, readout.factor_b)
        if mine.trimmed is not None:
            assert readout.trimmed is not None
            mine.trimmed.rows.fill(readout.trimmed.rows)
            mine.trimmed.ids.copy_(readout.trimmed.ids)
        return replace(weights, layers=self._layers, readout=mine)


def _own_layer(layer: Layer) -> Layer:
    qkv, o, gate_up, down = (_linear(matrix).resident() for matrix in layer.matrices)
    return replace(layer, qkv=qkv, o=o, gate_up=gate_up, down=down)


def _own_readout(branch: DraftBranch, readout: Readout) -> Readout:
    trimmed = readout.trimmed
    num_rows = branch.layout.head.out_features if trimmed is None else len(trimmed.ids)
    rank = branch.layout.head.rank
    norm = readout.norm.clone()
    return replace(
        readout,
        norm=norm,
        factor_a=norm.new_zeros(len(norm), rank),
        factor_b=norm.new_zeros(rank, num_rows),
        trimmed=trimmed and TrimmedHead(trimmed.rows.resident(), trimmed.ids.clone()),
    )


def _linear(matrix: object) -> Linear:
    assert isinstance(matrix, Linear), type(matrix)
    return matrix


def _fill(own: Tensor | None, given: Tensor | None) -> None:
    assert own is not None
    if given is None:
        own.zero_()
    else:
        own.copy_(given)
