"""What a row of a file means: a prompt as token ids, and its answer where the row has one.

Owns the columns that are understood; does not know who answers the rest.

    messages        chat; the last message is the answer if it is the assistant's
    conversations   the same in ShareGPT's words: from, value; human, gpt
    prompt          text, or messages; with ``completion`` (text or messages) as its answer
    text            no prompt: every token but the first is to be predicted, in pieces of a window
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dvi.modeling.tokenizer import Tokenizer

COLUMNS = ("messages", "conversations", "prompt", "text")
ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's words for them

Message = dict[str, str]


class RowRefused(ValueError):
    """A row that is not understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt; ``answer_ids`` None: the target is to answer."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read."""

    tokenizer: Tokenizer
    is_chat: bool  # a prompt that is text is one message of a user
    piece_len: int  # tokens of a piece of ``text``


def reading_of(tokenizer: Tokenizer, prompt_as: str | None, piece_len: int) -> Reading:
    """How to read for this tokenizer; ``prompt_as`` None: chat where it has a template."""
    kind = prompt_as or ("chat" if tokenizer.has_chat_template else "text")
    if kind == "chat" and not tokenizer.has_chat_template:
        raise ValueError("data.prompt_as=chat, but this model has no chat template: use text")
    return Reading(tokenizer, kind == "chat", piece_len)


def examples_of(row: Mapping[str, Any], reading: Reading) -> Iterator[Example]:
    """The examples of one row; none where its text is empty. Raises RowRefused."""
    column = next((name for name in COLUMNS if row.get(name) is not None), None)
    if column is None:
        raise RowRefused(f"no column of {', '.join(COLUMNS)}; it has {', '.join(row) or 'none'}")
    value = row[column]
    if column == "text":
        yield from _of_text(_as_text(value, "text"), reading)
    elif column == "prompt" and isinstance(value, str):
        yield from _of_prompt(value, row.get("completion"), reading)
    else:
        messages = _as_messages(value, column)
        if column == "prompt" and row.get("completion") is not None:
            messages += _as_answer(row["completion"])
        yield from _of_messages(messages, reading.tokenizer)


def _of_messages(messages: Sequence[Message], tokenizer: Tokenizer) -> Iterator[Example]:
    has_answer = messages[-1]["role"] == "assistant"
    asked = messages[:-1] if has_answer else messages
    if not asked:
        raise RowRefused("an answer without a message before it")
    prompt_ids = tuple(tokenizer.apply_chat_template(asked))
    if not has_answer:
        yield Example(prompt_ids, None)
        return
    whole = tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=False))
    if whole[: len(prompt_ids)] == prompt_ids:
        answer = _until_end(whole[len(prompt_ids) :], tokenizer)
    else:  # a template that writes an old answer otherwise than a new one
        answer = _with_end(tokenizer, messages[-1]["content"])
    if answer:
        yield Example(prompt_ids, answer)


def _of_prompt(prompt: str, completion: Any, reading: Reading) -> Iterator[Example]:
    tokenizer = reading.tokenizer
    if reading.is_chat:
        messages = [{"role": "user", "content": prompt}]
        answer = [] if completion is None else _as_answer(completion)
        yield from _of_messages([*messages, *answer], tokenizer)
        return
    prompt_ids = tuple(tokenizer.encode(prompt, add_special_tokens=True))
    if not prompt_ids:
        return
    if completion is None:
        yield Example(prompt_ids, None)
    elif answer_ids := _with_end(tokenizer, _as_text(completion, "completion")):
        yield Example(prompt_ids, answer_ids)


def _of_text(text: str, reading: Reading) -> Iterator[Example]:
    ids = tuple(reading.tokenizer.encode(text, add_special_tokens=True))
    for start in range(0, len(ids), reading.piece_len):
        piece = ids[start : start + reading.piece_len]
        if len(piece) > 1:
            yield Example(piece[:1], piece[1:])


def _until_end(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Up to and including the first end token: what a template writes behind it is no answer."""
    ends = [place for place, token in enumerate(ids) if token in tokenizer.end_token_ids]
    return ids[: ends[0] + 1] if ends else ids


def _with_end(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    return (*ids, *tokenizer.end_token_ids[:1]) if ids else ()


def _as_answer(completion: Any) -> list[Message]:
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return _as_messages(completion, "completion")


def _as_messages(value: Any, column: str) -> list[Message]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise RowRefused(f"{column} is no list of messages")
    return [_as_message(item, column) for item in value]


def _as_message(item: Any, column: str) -> Message:
    if not isinstance(item, Mapping):
        raise RowRefused(f"{column} has a message that is no object")
    role, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if not isinstance(role, str):
        raise RowRefused(f"{column} has a message without a role")
    return {"role": ROLES.get(role, role), "content": _as_text(content, column)}


def _as_text(value: Any, column: str) -> str:
    if not isinstance(value, str):
        raise RowRefused(f"{column} is {type(value).__name__}, not text")
    return value
