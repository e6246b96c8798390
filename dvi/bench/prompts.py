"""Prompts of the bench as token ids, by group: the built-in domains or a user's JSONL file.

Owns the file format; does not know what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvi.bench.bench import Ids
from dvi.modeling.tokenizer import Tokenizer
from dvi.traffic.stream import DOMAINS, make_stream

UNNAMED = "all"  # the group of rows that name no category


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt."""

    group: str  # domain or category
    ids: Ids


def chat(messages: list[dict[str, str]], tokenizer: Tokenizer) -> Ids:
    """The messages by the model's template; plain lines where it has none."""
    if not tokenizer.has_chat_template:
        text = "\n".join(message["content"] for message in messages)
        return tuple(tokenizer.encode(text, add_special_tokens=True))
    return tuple(tokenizer.apply_chat_template(messages))


def narrow_items(tokenizer: Tokenizer, first: int, count: int) -> list[Item]:
    """Requests ``first`` to ``first + count`` of each built-in domain, domain after domain."""
    stream = make_stream(first + count, seed=0)
    return [
        Item(prompt.domain, chat(prompt.messages(), tokenizer))
        for place, prompt in enumerate(stream)
        if place % (first + count) >= first
    ]


def mixed(items: Sequence[Item]) -> list[Item]:
    """The items in turn from each group."""
    groups = [of_group(items, group) for group in groups_of(items)]
    longest = max(len(group) for group in groups)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]


def groups_of(items: Sequence[Item]) -> list[str]:
    """Names in order of first appearance."""
    return list(dict.fromkeys(item.group for item in items))


def of_group(items: Sequence[Item], group: str) -> list[Item]:
    """The items of one group."""
    return [item for item in items if item.group == group]


def narrow_mix(tokenizer: Tokenizer, count: int) -> list[Ids]:
    """``count`` prompts in turn from the built-in domains."""
    items = mixed(narrow_items(tokenizer, 0, -(-count // len(DOMAINS))))
    return [item.ids for item in items[:count]]


def read_items(path: Path, tokenizer: Tokenizer, per_group: int) -> list[Item]:
    """The first ``per_group`` prompts of each category of a JSONL file.

    A row has ``turns`` (Spec-Bench; the first one is sent), ``messages`` or ``prompt``, and may
    have ``category``. Raises ValueError for a file that cannot be read or has another row.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    items: list[Item] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path} line {number} is not JSON") from error
        item = _item(row, f"{path} line {number}", tokenizer)
        if len(of_group(items, item.group)) < per_group:
            items.append(item)
    if not items:
        raise ValueError(f"{path} holds no prompt")
    return [item for group in groups_of(items) for item in of_group(items, group)]


def _item(row: Any, where: str, tokenizer: Tokenizer) -> Item:
    if isinstance(row, dict):
        group = str(row.get("category", UNNAMED))
        turns = row.get("turns")
        if isinstance(turns, list) and turns and isinstance(turns[0], str):
            return Item(group, chat([{"role": "user", "content": turns[0]}], tokenizer))
        if isinstance(row.get("messages"), list):
            return Item(group, chat(row["messages"], tokenizer))
        if isinstance(row.get("prompt"), str):
            return Item(group, tuple(tokenizer.encode(row["prompt"], add_special_tokens=True)))
    raise ValueError(
        f'{where} needs "turns" (a list of texts), "messages" (a list) or "prompt" (text)'
    )
