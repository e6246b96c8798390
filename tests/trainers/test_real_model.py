"""The same learner on the real model: agreement with the live draft, and that it learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.home import models_dir
from dvi.modeling.loading import load_target
from dvi.modeling.tokenizer import Tokenizer
from tests.trainers.world import LiveDraft, greedy
from trainers.build import make_learner
from trainers.draft import make_draft

PROMPTS = [
    f"Write a SQL query that lists the {column} of all {table} ordered by {column}."
    for table in ("customers", "invoices", "products")
    for column in ("name", "city")
]


@pytest.mark.real_model
@pytest.mark.slow
def test_on_the_real_model_the_trainer_agrees_with_the_live_draft_and_learns() -> None:
    folder: Path = models_dir() / "smollm2-135m"
    config = DviConfig()
    target = load_target(
        folder, config.model, 2, deterministic=False, layers="all", max_context_len=2048
    )
    tokenizer = Tokenizer.load(folder)
    live = LiveDraft(target, draft_len=2, config=config.drafter)
    traces = [
        live.decode(
            f"r{number}",
            tokenizer.apply_chat_template([{"role": "user", "content": prompt}]),
            greedy(32),
        )
        for number, prompt in enumerate(PROMPTS)
    ]
    learner = make_learner(config, target, make_draft(config.drafter, target, seed=0))
    before = learner.score(traces, version=0)
    assert before.logprob_gap is not None
    # Fused, packed live forward of a few positions against one padded batch, float32: logits of
    # about 20 differ by 1e-4 at most (SPEED.md); a log-probability is a difference of two.
    assert before.logprob_gap < 3e-4
    for _ in range(30):
        report = learner.train_step(traces, version=0)
        assert not report.is_dropped
    # The untrained draft is right at few positions; six answers are learned by heart quickly.
    assert learner.score(traces, version=0).agreement > before.agreement + 0.3
