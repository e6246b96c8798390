"""May one model draft for another? Their tokens must be the same, id by id.

Owns the comparison and its one line; imports no torch. Does not know how a draft is run. Tables may
have rows beyond the tokens (padding), a different number on either side.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from dvi.config import DrafterConfig, ModelConfig
from dvi.modeling.resolve import local_model_path, resolve_model_path
from dvi.modeling.spec import ModelRefused, read_json

KEY = "drafter.path"


def draft_folder(config: DrafterConfig) -> Path:
    """The folder of the draft model; raises ModelRefused with one line."""
    return resolve_model_path(_as_model(config), KEY)


def local_draft_folder(config: DrafterConfig) -> Path | None:
    """The same without the network: None for a hub id that is not in the local cache."""
    return local_model_path(_as_model(config), KEY)


def check_pair(target: Path, draft: Path) -> None:
    """Raise ModelRefused where an id does not mean the same to both, or the draft lacks its row.

    The message has both sizes and the first token that differs.
    """
    ours, theirs = read_tokens(target), read_tokens(draft)
    if ours != theirs:
        first = next(i for i in count() if ours.get(i) != theirs.get(i))
        raise ModelRefused(
            f"{KEY}={draft} has another tokenizer: {len(theirs)} tokens, the target {len(ours)}; "
            f"the first that differs is id {first}: {_shown(theirs, first)}, "
            f"the target's is {_shown(ours, first)}"
        )
    needed = min(1 + max(ours), num_rows(target))
    if num_rows(draft) < needed:
        raise ModelRefused(
            f"{KEY}={draft} has {num_rows(draft)} rows of embedding, the target's tokens need "
            f"{needed}: the first without one is id {num_rows(draft)}, "
            f"{_shown(ours, num_rows(draft))}"
        )


def read_tokens(folder: Path) -> dict[int, str]:
    """Id -> token of a tokenizer.json: a table by token, or a list in order of ids (unigram)."""
    path = folder / "tokenizer.json"
    try:
        data = read_json(path)
        vocab = data["model"]["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else _numbered(vocab)
        tokens = {int(index): str(token) for token, index in pairs}
        added = data.get("added_tokens") or []
        return tokens | {int(one["id"]): str(one["content"]) for one in added}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ModelRefused(f"{path} holds no table of tokens: {type(error).__name__}") from error


def num_rows(folder: Path) -> int:
    """Rows of the model's embedding."""
    path = folder / "config.json"
    rows = read_json(path).get("vocab_size")
    if not isinstance(rows, int):
        raise ModelRefused(f"{path} has no vocab_size")
    return rows


def _as_model(config: DrafterConfig) -> ModelConfig:
    if config.path is None:
        raise ModelRefused(f"{KEY} is not given: the folder of the draft model")
    return ModelConfig(path=config.path)


def _numbered(vocab: list[Any]) -> list[tuple[str, int]]:
    return [(str(entry[0]), index) for index, entry in enumerate(vocab)]


def _shown(tokens: dict[int, str], index: int) -> str:
    return repr(tokens[index]) if index in tokens else "no token"
