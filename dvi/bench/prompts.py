"""Prompts of the bench as token ids: a user's JSONL file or the demo's streams.

Owns the file format; does not know what is measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dvi.config import BenchConfig
from dvi.demo.stream import DOMAINS, make_stream
from dvi.modeling.tokenizer import Tokenizer

Ids = tuple[int, ...]


def _from_row(row: Any, where: str, tokenizer: Tokenizer) -> Ids:
    if isinstance(row, dict) and isinstance(row.get("messages"), list):
        return _chat(row["messages"], tokenizer)
    if isinstance(row, dict) and isinstance(row.get("prompt"), str):
        return tuple(tokenizer.encode(row["prompt"], add_special_tokens=True))
    raise ValueError(f'{where} needs "prompt" (text) or "messages" (a list)')


def _chat(messages: list[dict[str, str]], tokenizer: Tokenizer) -> Ids:
    if not tokenizer.has_chat_template:
        text = "\n".join(message["content"] for message in messages)
        return tuple(tokenizer.encode(text, add_special_tokens=True))
    return tuple(tokenizer.apply_chat_template(messages))


def _read_file(path: Path, tokenizer: Tokenizer) -> list[Ids]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"bench.prompts: cannot read {path}: {error.strerror}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path} line {number} is not JSON") from error
        prompts.append(_from_row(row, f"{path} line {number}", tokenizer))
    if not prompts:
        raise ValueError(f"bench.prompts: {path} holds no prompt")
    return prompts


def load_prompts(config: BenchConfig, tokenizer: Tokenizer) -> list[Ids]:
    """``num_prompts`` prompts, repeated from the start where the source has fewer.

    The built-in ones are taken in turn from the three domains of the demo. Raises ValueError for a
    file that cannot be read or has a row of another form.
    """
    if config.prompts is not None:
        prompts = _read_file(Path(config.prompts), tokenizer)
    else:
        per_domain = -(-config.num_prompts // len(DOMAINS))
        stream = make_stream(per_domain, seed=0)
        mixed = [stream[d * per_domain + i] for i in range(per_domain) for d in range(len(DOMAINS))]
        prompts = [_chat(prompt.messages(), tokenizer) for prompt in mixed]
    return [prompts[i % len(prompts)] for i in range(config.num_prompts)]
