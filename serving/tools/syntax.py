"""How the model's chat template shows tools and how its calls are written.

Owns the probe of the template: what it does with a made-up tool says more than its source. Knows
no request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from serving.words import TEMPLATE_FAULTS, PromptTokenizer

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_NAME, _VALUE, _CALL_ID = "probe_tool_7f3a", "probe_value_7f3a", "probe7f3a"  # Mistral: 9 long
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_CALL = {
    "id": _CALL_ID,
    "type": "function",
    "function": {"name": _NAME, "arguments": {"word": _VALUE}},
}
_USER: dict[str, Any] = {"role": "user", "content": "hi"}
_AGENT: list[dict[str, Any]] = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "done", "tool_call_id": _CALL_ID, "name": _NAME},
]
_MARKED = re.compile(rf"{OPENING}\s*\[?\s*\{{[^<]*{_VALUE}")
_KEY = re.compile(rf'"(arguments|parameters)"\s*:\s*\{{[^{{]*{_VALUE}')


class ToolForm(StrEnum):
    """How a call stands in the model's text."""

    HERMES = "hermes"  # JSON between <tool_call> and </tool_call>
    JSON = "json"  # JSON and nothing else


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """What one model knows of tools."""

    shows_tools: bool = False  # the template tells the model of tools
    shows_calls: bool = False  # the template prints calls of earlier messages
    form: ToolForm = ToolForm.JSON
    arguments_key: str = "arguments"
    reads_auto: bool = True  # answers are searched for calls where the model is free to make one
    marks_are_tokens: bool = False  # the marks around a call are one token each
    marks_are_special: bool = False  # and have no text where special tokens are skipped


def find_syntax(tokenizer: PromptTokenizer, parser: str) -> ToolSyntax:
    """The syntax by ``serving.tool_parser``: auto goes by the template, hermes and json force a
    form, none takes the template's but never searches a free answer.
    """
    if not tokenizer.has_chat_template:
        return ToolSyntax()
    shown, agent = _render(tokenizer, [_USER]), _render(tokenizer, _AGENT)
    is_hermes = bool(_MARKED.search(agent)) or (_VALUE not in agent and OPENING in shown)
    form = ToolForm.HERMES if is_hermes else ToolForm.JSON
    key = _KEY.search(agent)
    mark = tokenizer.encode(OPENING, add_special_tokens=False)
    return ToolSyntax(
        shows_tools=_NAME in shown,
        shows_calls=_VALUE in agent,
        form=ToolForm(parser) if parser in set(ToolForm) else form,
        arguments_key=key[1] if key else "arguments",
        reads_auto=parser != "none",
        marks_are_tokens=len(mark) == 1,
        marks_are_special=not tokenizer.decode(mark, skip_special_tokens=True),
    )


def _render(tokenizer: PromptTokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """Empty where the template refuses: what it cannot print it does not know."""
    try:
        return tokenizer.render_chat(messages, tools=[_TOOL])
    except TEMPLATE_FAULTS:
        return ""
