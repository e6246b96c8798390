"""Prompts as a client has them: messages or text, from the built-in streams or a JSONL file.

Owns the choice of rows; `dvi.bench.prompts` has the same ones as ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dvi.bench.prompts import chat
from dvi.config import BenchConfig
from dvi.modeling.tokenizer import Tokenizer
from dvi.traffic.stream import DOMAINS, make_stream

Row = dict[str, Any]


def _of_file(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"bench.prompts: cannot read {path}: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path} line {number} is not JSON") from error
        if not isinstance(row, dict) or not {"messages", "prompt"} & row.keys():
            raise ValueError(f'{path} line {number} needs "prompt" (text) or "messages" (a list)')
        rows.append(row)
    if not rows:
        raise ValueError(f"bench.prompts: {path} holds no prompt")
    return rows


def load_rows(config: BenchConfig) -> list[Row]:
    """``num_prompts`` rows of each built-in domain in turn, or all rows of the user's file.

    Raises ValueError for a file that cannot be read or has a row of another form.
    """
    if config.prompts is not None:
        return _of_file(Path(config.prompts))
    count = config.num_prompts
    stream = make_stream(count, seed=0)
    mixed = [stream[d * count + i] for i in range(count) for d in range(len(DOMAINS))]
    return [{"messages": prompt.messages()} for prompt in mixed]


def row_ids(row: Row, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that the server makes of a row."""
    if "messages" in row:
        return chat(row["messages"], tokenizer)
    return tuple(tokenizer.encode(row["prompt"], add_special_tokens=True))
