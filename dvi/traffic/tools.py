"""An agent's traffic: questions that each take one call of one of three functions.

Owns the functions, the questions and a way to show tools to models of ChatML that were taught none;
does not know how they are sent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

DOMAIN = "tools"
_SYSTEM = "You are an assistant that calls functions."
_CITIES = ("Lisbon", "Oslo", "Vienna", "Dublin", "Prague", "Madrid", "Athens", "Helsinki")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_NAMES = ("Anna", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo")
_WORD = {"type": "string", "maxLength": 12}


def _function(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": parameters,
        "required": list(parameters),
        "additionalProperties": False,
    }
    about = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": about}


FUNCTIONS = [
    _function("get_weather", "Weather of a city on a day.", {"city": _WORD, "day": _WORD}),
    _function(
        "track_order",
        "Where an order is.",
        {"order": {"type": "integer", "minimum": 1, "maximum": 9999}, "customer": _WORD},
    ),
    _function("book_meeting", "Book a meeting.", {"with": _WORD, "day": _WORD, "place": _WORD}),
]

# ChatML with tools. In front of a template that shows none: `{%- if tools %}` this, else that.
TOOL_TEMPLATE = """<|im_start|>system
Call one of these functions:
{% for tool in tools %}
{{ tool.function | tojson }}
{% endfor %}
as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
{% set made = call.function %}
<tool_call>{{ {"name": made.name, "arguments": made.arguments} | tojson }}</tool_call>
{%- endfor %}
<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """One question of the stream."""

    index: int  # place in the stream, from 0
    question: str
    domain: str = DOMAIN

    def messages(self) -> list[dict[str, str]]:
        """The chat messages."""
        return [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": self.question},
        ]


def make_tool_stream(count: int, seed: int) -> list[ToolPrompt]:
    """Questions in an order that the seed decides."""
    rng = random.Random(f"{seed}-{DOMAIN}")
    return [ToolPrompt(index, _question(rng)) for index in range(count)]


def _question(rng: random.Random) -> str:
    city, day, name = rng.choice(_CITIES), rng.choice(_DAYS), rng.choice(_NAMES)
    return rng.choice(
        (
            f"What is the weather in {city} on {day}?",
            f"I am {name}. Where is my order {rng.randint(100, 999)}?",
            f"Book a meeting with {name} on {day} in {city}.",
        )
    )


def with_tools(template: str) -> str | None:
    """A template that shows tools; None: it does so by itself, or it is not of ChatML."""
    if "tools" in template or "<|im_start|>" not in template:
        return None
    return "{%- if tools %}" + TOOL_TEMPLATE + "{%- else %}" + template + "{%- endif %}"
