"""Random mixes of fields on the fetched SmolLM2, with draft and memory, against plain decoding."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dvi.config import DecodingConfig, DrafterConfig, DviConfig, ModelConfig, ServingConfig
from dvi.decoding import decode_batch
from dvi.decoding.grammar import choice_grammar, json_schema_grammar, regex_grammar
from dvi.decoding.startup import OpenEngine, open_engine
from dvi.types import DecodeRequest, SamplingParams
from tests.drafting.rows import random_prompt

NUM_REQUESTS = 50
SEED = 20261129
NUM_IDS = 49_152
BATCH = 8
QUESTIONS = (
    "List three colours.",
    "Write a SQL query that counts orders by city.",
    "Say hello, hello, hello and hello again.",
    "Complete: one two three one two three one two",
)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}

Draw = Callable[[random.Random], dict[str, object]]
FIELDS: dict[str, Draw] = {
    "temperature": lambda rng: {"temperature": rng.choice([0.3, 0.8, 1.5])},
    "top_k": lambda rng: {"top_k": rng.randint(2, 50)},
    "top_p": lambda rng: {"top_p": rng.uniform(0.5, 0.98)},
    "min_p": lambda rng: {"min_p": rng.uniform(0.01, 0.3)},
    "presence": lambda rng: {"presence_penalty": rng.uniform(-1, 2)},
    "frequency": lambda rng: {"frequency_penalty": rng.uniform(-1, 2)},
    "repetition": lambda rng: {"repetition_penalty": rng.choice([0.9, 1.1, 1.5])},
    "bias": lambda rng: {
        "logit_bias": tuple((i, rng.choice([-100.0, 2.0])) for i in rng.sample(range(NUM_IDS), 50))
    },
    "stop": lambda rng: {"stop": (rng.choice(["\n", " the", ".", "hello", ","]),)},
    "choice": lambda rng: {"choice_index": rng.randint(1, 7)},
    "logprobs": lambda rng: {"logprobs": rng.randint(0, 5)},
    "min_tokens": lambda rng: {"min_tokens": rng.randint(1, 8)},
    "grammar": lambda rng: {
        "grammar": rng.choice(
            [
                regex_grammar("[a-z ]+"),
                choice_grammar(["red, green and blue", "red, green and black"]),
                json_schema_grammar(SCHEMA),
            ]
        )
    },
}


@pytest.fixture(scope="module")
def opened() -> OpenEngine:
    config = DviConfig(
        model=ModelConfig(path="smollm2-135m", num_threads=1),
        drafter=DrafterConfig(kind="auto"),
        decoding=DecodingConfig(deterministic=True, adaptive=False, draft_len=4),
        serving=ServingConfig(max_batch_size=BATCH, max_context_len=512),
    )
    return open_engine(config)


def draw_request(rng: random.Random, opened: OpenEngine, index: int) -> DecodeRequest:
    """Up to five fields over a chat, or over ids that mean nothing."""
    tokenizer = opened.tokenizer
    prompt = random_prompt(index, rng.randint(1, 40), NUM_IDS)
    if rng.random() < 0.8:
        question = [{"role": "user", "content": rng.choice(QUESTIONS)}]
        prompt = tokenizer.apply_chat_template(question)
    sampling: dict[str, object] = {
        "max_tokens": rng.randint(8, 20),
        "temperature": 0.0,
        "seed": rng.getrandbits(64),
        "end_token_ids": tokenizer.end_token_ids,
    }
    for name in rng.sample(sorted(FIELDS), rng.randint(1, 5)):
        sampling |= FIELDS[name](rng)
    return DecodeRequest(f"r{index}", tuple(prompt), SamplingParams(**sampling))


@pytest.mark.slow
@pytest.mark.real_model
def test_50_random_mixes_of_fields_give_the_answers_of_plain_decoding(opened: OpenEngine) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    requests = [draw_request(rng, opened, index) for index in range(NUM_REQUESTS)]
    drafted = decode_batch(opened.engine, requests)
    assert opened.engine.stats().counts.accepted > 0
    for request, result in zip(requests, drafted, strict=True):
        # Alone on its row, one token a step: another batch and another width.
        (plain,) = decode_batch(opened.engine, [replace(request, speculation=False)])
        assert plain.counts.proposed == 0
        assert result.token_ids == plain.token_ids, request
        assert (result.text, result.finish_reason) == (plain.text, plain.finish_reason), request
        assert result.logprobs == plain.logprobs, request
