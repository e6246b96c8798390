"""The block draft on the fetched SmolLM2: file size and agreement of live draft and trainer."""

from __future__ import annotations

import pytest
import torch

from dvi.config import DrafterConfig, ModelConfig
from dvi.config.home import models_dir
from dvi.drafting import DraftModule, draft_branch, lora, make_drafter
from dvi.modeling.loading import load_target
from tests.drafting.rows import Bench, Row, one_shot_logits, random_prompt, random_tensors

# Live and trainer are two float32 forwards of three layers in another order of sums; the target's
# fast path against its canonical one, thirty layers, was measured at 1e-4 in logits.
LOGPROB_GAP = 1e-3


@pytest.fixture(scope="module")
def bench():
    config = DrafterConfig(draft_vocab_size=None)
    target = load_target(
        models_dir() / "smollm2-135m",
        ModelConfig(num_threads=1),
        config.exit_layer,
        deterministic=False,
        layers="all",
        max_context_len=512,
    )
    drafter = make_drafter(config, target, num_rows=1, max_len=512)
    cache = target.new_cache(target.spec.num_layers, 1, 512)
    return Bench(target, drafter, draft_branch(config, target), cache)


@pytest.mark.slow
@pytest.mark.real_model
def test_logged_log_probabilities_are_those_of_the_trainer(bench):
    # 0.02: updates of the size of a matrix entry, as after some hundred steps of training
    tensors = random_tensors(bench.branch.layout, 1, scale=0.02 / 0.3)
    bench.load(tensors)
    row = Row(bench, 0, random_prompt(1, 120, 49_000))
    row.prefill([64])
    for _ in range(6):
        (proposal,) = bench.drafter.propose([row.request(4)], bench.cache)
        text = [*row.tokens, *proposal.ids[:-1]]
        expected = one_shot_logits(bench, tensors, text).log_softmax(-1)[-4:]
        recomputed = expected.gather(1, torch.tensor(proposal.ids)[:, None])[:, 0].tolist()
        assert proposal.logprobs == pytest.approx(recomputed, abs=LOGPROB_GAP)
        row.verify(proposal.ids)


@pytest.mark.slow
@pytest.mark.real_model
def test_an_adapter_stays_a_few_megabytes(bench, tmp_path):
    layout = bench.branch.layout
    module = lora.wrap(DraftModule(bench.branch), layout, torch.Generator().manual_seed(0))
    lora.save(module, tmp_path)
    # 1.07 M float32 values: five matrices at rank 32, the head at rank 16, the norm
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < 4.5e6
