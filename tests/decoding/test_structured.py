"""JSON from a tokenizer's own files: what open_engine makes of response formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.home import models_dir
from dvi.decoding import decode_batch
from dvi.decoding.grammar import choice_grammar, json_schema_grammar
from dvi.decoding.startup import OpenEngine, open_engine
from dvi.types import DecodeRequest, FinishReason, SamplingParams
from tests.rigs import make_model_folder

NUM_IDS = 49_152  # of the real model
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["small", "large", "größer"]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenEngine:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    make_model_folder(tmp_path / "model")
    return open_engine(config_of(tmp_path / "model"))


def config_of(path: Path) -> DviConfig:
    config = DviConfig()
    config.model.path = str(path)
    config.serving.max_batch_size = 8
    config.serving.max_context_len = 400
    config.decoding.adaptive = False
    config.decoding.deterministic = True
    return config


def ask(opened: OpenEngine, index: int, grammar: str, **fields: object) -> DecodeRequest:
    ids = opened.tokenizer.encode(f"number {index}", add_special_tokens=False)
    sampling = {"max_tokens": 150, "temperature": 1.0, "seed": index, **fields}
    ends = opened.tokenizer.end_token_ids
    params = SamplingParams(grammar=grammar, end_token_ids=ends, **sampling)
    opened.engine.check_grammar(grammar)
    return DecodeRequest(f"r{index}", tuple(ids), params)


def test_answers_of_a_schema_are_values_of_it_with_speculation_on(opened):
    requests = [ask(opened, index, json_schema_grammar(SCHEMA)) for index in range(8)]
    results = decode_batch(opened.engine, requests)
    parsed = [
        json.loads(result.text) for result in results if result.finish_reason is FinishReason.STOP
    ]
    assert parsed
    for value in parsed:
        assert set(value) == {"ok", "size"}
        assert isinstance(value["ok"], bool)
        assert value["size"] in SCHEMA["properties"]["size"]["enum"]
    assert opened.engine.stats().counts.accepted > 0


def test_a_choice_is_taken_as_written_whatever_its_characters(opened):
    choices = ['say "no"', "back\\slash", "two\nlines", "größer", "ünder | score"]
    requests = [ask(opened, index, choice_grammar(choices)) for index in range(8)]
    for result in decode_batch(opened.engine, requests):
        assert result.text in choices
        assert result.finish_reason is FinishReason.STOP


def test_grammar_answers_equal_plain_ones(opened):
    grammars = [json_schema_grammar(SCHEMA), json_schema_grammar({"type": "object"})]
    requests = [ask(opened, index, grammars[index % 2], max_tokens=40) for index in range(8)]
    plain = [
        DecodeRequest(one.request_id, one.prompt_ids, one.sampling, speculation=False)
        for one in requests
    ]
    drafted = [one.token_ids for one in decode_batch(opened.engine, requests)]
    assert drafted == [one.token_ids for one in decode_batch(opened.engine, plain)]


@pytest.mark.slow
@pytest.mark.real_model
def test_the_real_model_answers_in_json():
    opened = open_engine(config_of(models_dir() / "smollm2-135m"))
    # White space is JSON without end: this model, sampled, would fill the limit with it.
    texts = ((token, opened.tokenizer.token_text(token)) for token in range(NUM_IDS))
    blanks = tuple((token, -100.0) for token, text in texts if text.isspace())
    requests = [
        ask(
            opened,
            index,
            json_schema_grammar(SCHEMA),
            temperature=0.7,
            max_tokens=60,
            logit_bias=blanks,
        )
        for index in range(8)
    ]
    plain = [
        DecodeRequest(one.request_id, one.prompt_ids, one.sampling, speculation=False)
        for one in requests
    ]
    results = decode_batch(opened.engine, requests)
    for result in results:
        assert result.finish_reason is FinishReason.STOP
        assert set(json.loads(result.text)) == {"ok", "size"}
    drafted = [one.token_ids for one in results]
    assert drafted == [one.token_ids for one in decode_batch(opened.engine, plain)]
