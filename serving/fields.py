"""Which request keys exist elsewhere and are not honoured here, and what counts as asking nothing.

Every key is in one of three classes: defined by OpenAI or vLLM but not honoured (400 unless the
value asks for nothing), a hint that cannot change an answer, or unknown (accepted and listed).
Knows nothing of the keys that are honoured: those are fields of the models in ``schema``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_NAME_LEN = 64  # of an unknown key as it is listed

# Null and empty values always ask for nothing; the values here are documented defaults.
COMMON_UNHONOURED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": (),
    "cache_salt": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": (),
    "mm_processor_kwargs": (),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "request_id": (),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": (),
}

# Fields of one route that the other has no use for.
COMPLETION_UNHONOURED: dict[str, tuple[Any, ...]] = COMMON_UNHONOURED | {
    "best_of": (1,),
    "continue_final_message": (False,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_embeds": (),
    "suffix": (),
}

CHAT_UNHONOURED: dict[str, tuple[Any, ...]] = COMMON_UNHONOURED | {
    "audio": (),
    "chat_template": (),
    "documents": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": (),
    "include_reasoning": (True,),
    "media_io_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "thinking_token_budget": (),
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
}

STRUCTURED_UNHONOURED: dict[str, tuple[Any, ...]] = {
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (False,),
    "grammar": (),
    "json_object": (False,),
    "structural_tag": (),
    "whitespace_pattern": (),
}

FORMAT_UNHONOURED: dict[str, tuple[Any, ...]] = {"structures": (), "triggers": ()}

STREAM_UNHONOURED: dict[str, tuple[Any, ...]] = {"continuous_usage_stats": (False,)}

HINTS = frozenset(
    {
        "include_obfuscation",
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


def sort_keys(
    extra: Mapping[str, Any], unhonoured: Mapping[str, tuple[Any, ...]], where: str = ""
) -> tuple[list[str], list[str]]:
    """Names of the keys of ``extra`` to refuse and of those to ignore, with ``where`` before each.

    Refused are those that ask for something this server does not do.
    """
    refused, ignored = [], []
    for key, value in extra.items():
        name = f"{where}{key}"[:MAX_NAME_LEN]
        if key in unhonoured:
            if not asks_for_nothing(value, unhonoured[key]):
                refused.append(name)
        elif key not in HINTS:
            ignored.append(name)
    return refused, ignored
