"""Which request keys exist elsewhere and are not honoured here, and what counts as asking nothing.

Every key is in one of three classes: defined by OpenAI or vLLM but not honoured (400 unless the
value asks for nothing), a hint that cannot change an answer, or unknown (accepted and listed).
Knows nothing of the keys that are honoured: those are fields of the models in ``schema``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.errors import invalid

# Null and empty values always ask for nothing; the values here are documented defaults.
COMMON_UNHONOURED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": (),
    "cache_salt": (),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_bias": (),
    "logits_processors": (),
    "logprobs": (False,),
    "min_tokens": (0,),
    "mm_processor_kwargs": (),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "repetition_penalty": (1,),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": (),
}

COMPLETION_UNHONOURED: dict[str, tuple[Any, ...]] = COMMON_UNHONOURED | {
    "best_of": (1,),
    "prompt_embeds": (),
    "suffix": (),
}

CHAT_UNHONOURED: dict[str, tuple[Any, ...]] = COMMON_UNHONOURED | {
    "audio": (),
    "chat_template": (),
    "documents": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "include_reasoning": (True,),
    "media_io_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

MESSAGE_UNHONOURED: dict[str, tuple[Any, ...]] = {
    "annotations": (),
    "audio": (),
    "function_call": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": (),
}

STREAM_UNHONOURED: dict[str, tuple[Any, ...]] = {"continuous_usage_stats": (False,)}

HINTS = frozenset(
    {
        "include_obfuscation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
    }
)


def asks_for_nothing(value: Any, inert: tuple[Any, ...]) -> bool:
    """True for null, an empty string, list or object, and the documented defaults.

    ``0 == False`` in Python, so a Boolean matches only a Boolean.
    """
    if value is None or value in ("", [], {}):
        return True
    return any(
        value == known and isinstance(value, bool) == isinstance(known, bool) for known in inert
    )


def ignored_keys(
    extra: Mapping[str, Any] | None, unhonoured: Mapping[str, tuple[Any, ...]], where: str = ""
) -> list[str]:
    """Names of the unknown keys of ``extra``, each with ``where`` before it.

    Raises a 400 that names the first key which asks for something this server does not do.
    """
    ignored = []
    for key, value in (extra or {}).items():
        name = f"{where}{key}"
        if key in unhonoured:
            if not asks_for_nothing(value, unhonoured[key]):
                raise invalid(
                    f"{name} is not supported by this server.", name, "unsupported_parameter"
                )
        elif key not in HINTS:
            ignored.append(name[:64])
    return ignored
