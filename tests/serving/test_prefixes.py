"""Shared prefixes as users and operators see them: usage, metrics, scopes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.config import DecodingConfig, DrafterConfig, DviConfig
from serving.auth import AccessRules, with_scopes
from tests.serving.fakes import FakeEngine, fake_server
from tests.serving.live import live_server, tiny_config

SYSTEM = {"role": "system", "content": "Answer in one short sentence, and never name a color."}


def scopes(config: DviConfig, *keys: str) -> tuple[str | None, str | None]:
    told = with_scopes(config, AccessRules(keys))
    return told.drafter.memory_scope, told.decoding.prefix_scope


def test_scopes_are_global_with_one_key_and_per_user_with_several_unless_told() -> None:
    assert scopes(DviConfig()) == scopes(DviConfig(), "one") == ("global", "global")
    assert scopes(DviConfig(), "one", "two") == ("user", "user")
    memory_told = DviConfig(drafter=DrafterConfig(memory_scope="global"))
    assert scopes(memory_told, "one", "two") == ("global", "user")
    prefix_told = DviConfig(decoding=DecodingConfig(prefix_scope="off"))
    assert scopes(prefix_told, "one") == ("global", "off")


def test_usage_counts_the_cached_tokens_of_a_prompt_once() -> None:
    body = {"prompt": [[5, 6, 7], [8, 9]], "n": 3, "max_tokens": 9}
    with fake_server(FakeEngine(knows_prompts=True)) as server:
        usage = server.http.post("/v1/completions", json=body).json()["usage"]
        assert usage["prompt_tokens"] == 5
        assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


@pytest.mark.parametrize("content", ["Hello there.", "Tell me more."])
def test_the_second_request_with_a_system_prompt_reads_its_own_part_only(
    tiny_model: Path, tmp_path: Path, content: str
) -> None:
    with live_server(tiny_config(tiny_model, tmp_path / "state"), tmp_path) as live:

        def ask(text: str) -> tuple[int, int]:
            answer = live.client.chat.completions.create(
                model="tiny",
                messages=[SYSTEM, {"role": "user", "content": text}],  # type: ignore[list-item]
                max_tokens=4,
                temperature=0,
            )
            usage = answer.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.prompt_tokens_details.cached_tokens is not None
            return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

        first, cached = ask("Hi, who are you?")
        assert cached == 0
        second, cached = ask(content)
        assert 20 < cached < second
        metrics = live.metrics()
        assert metrics["dvi_prompt_tokens_total"] == first + second
        assert metrics["dvi_prompt_tokens_reused_total"] == cached
