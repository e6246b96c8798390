"""Our forward against the untouched Hugging Face model, every family, every way to feed a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dvi.config import ModelConfig
from dvi.modeling.loading import load_target
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from tests.modeling.helpers import decode_in_widths, forward, random_ids, whole_cache
from tests.rigs import make_model_folder

# float32 logits of size ~10 through 4 layers: another order of sums moves them by some 1e-5; a
# wrong rotation, bias, norm or mask moves them by 0.1 and more.
TOLERANCE = 2e-4
NUM_TOKENS = 40
FAMILIES: dict[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("llama", {}),
    "llama-biased-tied": ("llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama3-rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "mistral": ("mistral", {"head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Both implementations on one checkpoint, and the reference logits of one text."""

    ours: TargetModel
    ids: tuple[int, ...]
    want: Tensor  # [T, num_token_ids]
    theirs: torch.nn.Module

    def reference(self, ids: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            logits = self.theirs(input_ids=torch.tensor([ids])).logits[0]
        return logits[:, : self.ours.spec.num_token_ids]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    arch, overrides = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    theirs = make_model_folder(folder, arch, overrides=overrides)
    ours = load(folder)
    ids = random_ids(NUM_TOKENS, ours.spec.num_token_ids)
    bare = Pair(ours, ids, torch.empty(0), theirs)
    return Pair(ours, ids, bare.reference(ids), theirs)


def load(folder: Path) -> TargetModel:
    return load_target(
        folder, ModelConfig(), 2, deterministic=False, layers="all", max_context_len=256
    )


def assert_same(pair: Pair, got: Tensor, want: Tensor) -> None:
    existing = got[:, : pair.ours.spec.num_token_ids]
    torch.testing.assert_close(existing, want, atol=TOLERANCE, rtol=0)


def test_prefill_equals_hugging_face(pair: Pair) -> None:
    got = forward(pair.ours, whole_cache(pair.ours), [Segment(1, 0, pair.ids)])
    assert_same(pair, got, pair.want)


def test_one_by_one_equals_hugging_face(pair: Pair) -> None:
    got = decode_in_widths(pair.ours, whole_cache(pair.ours), 0, pair.ids, [1] * NUM_TOKENS)
    assert_same(pair, got, pair.want)


def test_chunks_equal_hugging_face(pair: Pair) -> None:
    got = decode_in_widths(pair.ours, whole_cache(pair.ours), 2, pair.ids, [17, 1, 5, 2, 15])
    assert_same(pair, got, pair.want)


def test_rollback_leaves_no_trace(pair: Pair) -> None:
    cache = whole_cache(pair.ours)
    wrong = random_ids(9, pair.ours.spec.num_token_ids, seed=7)
    forward(pair.ours, cache, [Segment(0, 0, pair.ids[:20])])
    forward(pair.ours, cache, [Segment(0, 20, wrong)])
    got = forward(pair.ours, cache, [Segment(0, 20, pair.ids[20:])])
    assert_same(pair, got, pair.want[20:])


def test_ragged_batch_equals_hugging_face_row_by_row(pair: Pair) -> None:
    cache = whole_cache(pair.ours)
    other = random_ids(30, pair.ours.spec.num_token_ids, seed=3)
    forward(pair.ours, cache, [Segment(2, 0, pair.ids[:25]), Segment(0, 0, other[:3])])
    got = forward(
        pair.ours,
        cache,
        [Segment(0, 3, other[3:4]), Segment(2, 25, pair.ids[25:]), Segment(1, 0, other)],
    )
    assert_same(pair, got[:1], pair.reference(other)[3:4])
    assert_same(pair, got[1:16], pair.want[25:])
    assert_same(pair, got[16:], pair.reference(other))


def test_ids_without_token_never_win(pair: Pair) -> None:
    spec = pair.ours.spec
    assert spec.num_token_ids < spec.vocab_size
    logits = forward(pair.ours, whole_cache(pair.ours), [Segment(0, 0, pair.ids)])
    assert logits.dtype == torch.float32
    assert torch.all(logits[:, spec.num_token_ids :] == float("-inf"))
    assert torch.all(torch.isfinite(logits[:, : spec.num_token_ids]))
