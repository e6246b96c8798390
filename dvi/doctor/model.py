"""Checks of the model: folder, architecture, whole weight files, tokenizer, template, memory.

Owns a reading of the folder without torch; whether it decodes is what ``--deep`` and the server
find out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dvi.config import DviConfig
from dvi.doctor.finding import Finding, fault, ok, warning
from dvi.modeling.resolve import local_model_path
from dvi.modeling.spec import SUPPORTED, ModelRefused, read_chat_template, read_json

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ROW_TILE = 512  # cache rows are a multiple of so many positions long
_HEADER_BYTES = 8  # of a safetensors file: the length of its JSON header
_LONGEST_HEADER = 100 << 20


def check_model(config: DviConfig) -> list[Finding]:
    """The model and what depends on it; one finding where it is not there."""
    try:
        folder = local_model_path(config.model)
    except ModelRefused as error:
        return [fault("model", str(error), _other_model(str(error)))]
    if folder is None:
        name = config.model.path
        return [warning("model", f"{name} is not downloaded yet: the first `dvi serve` does it")]
    try:
        settings = read_json(folder / "config.json")
        findings = [
            _check_weights(config, folder, settings),
            _check_tokenizer(folder, settings),
            _check_template(config.model.chat_template, folder),
        ]
        if findings[0].level == "ok":
            findings.append(_check_memory(config, folder, settings))
    except ModelRefused as error:  # a file of the folder cannot be read
        return [fault("model", str(error), _other_model(""))]
    return findings


def _other_model(message: str) -> str:
    _, marker, command = message.partition("run: ")
    return command if marker else "dvi models fetch smollm2-135m"


def weight_files(folder: Path) -> list[Path]:
    """Files that a model's weights should be in."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(read_json(index).get("weight_map", {}).values())
        return [folder / str(name) for name in sorted(names)]
    return [folder / "model.safetensors"]


def _check_weights(config: DviConfig, folder: Path, settings: dict[str, Any]) -> Finding:
    again = f"rm -r {folder} && dvi models fetch {config.model.path}"
    if folder.name != config.model.path:
        again = f"copy the model to {folder} again"
    return check_files("model", config, folder, settings, (_other_model(""), again))


def check_files(
    name: str,
    config: DviConfig,
    folder: Path,
    settings: dict[str, Any],
    mends: tuple[str, str],
) -> Finding:
    """Architecture, whole weight files, positions; ``mends`` get another model, or this again."""
    other, again = mends
    architecture = (settings.get("architectures") or ["unknown"])[0]
    if architecture not in SUPPORTED:
        message = f"{folder}: {architecture} is not supported ({', '.join(SUPPORTED)})"
        return fault(name, message, other)
    for path in weight_files(folder):
        if problem := broken_weights(path):
            return fault(name, problem, again)
    longest = int(settings.get("max_position_embeddings", 1 << 20))
    if config.serving.max_context_len > longest:
        wanted = config.serving.max_context_len
        message = f"serving.max_context_len={wanted}, {folder} knows {longest} positions"
        return fault(name, message, f"dvi serve serving.max_context_len={longest}")
    return ok(name, f"{folder}, {architecture}")


def broken_weights(path: Path) -> str:
    """Why a safetensors file is not whole; empty where it is. Reads its header only."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_HEADER_BYTES), "little")
            if length > min(size, _LONGEST_HEADER):
                return f"{path} is no safetensors file or cut off"
            header = json.loads(file.read(length))
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}"
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    wanted = _HEADER_BYTES + length + max(ends, default=0)
    return "" if size == wanted else f"{path} has {size} bytes, its header says {wanted}"


def _check_tokenizer(folder: Path, settings: dict[str, Any]) -> Finding:
    path = folder / "tokenizer.json"
    mend = f"copy tokenizer.json of the model to {folder}"
    if not path.is_file():
        return fault("tokenizer", f"{path} is missing", mend)
    try:
        ids = _token_ids(read_json(path))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return fault("tokenizer", f"{path} cannot be read: {error}", mend)
    highest = max(ids)
    rows = int(settings.get("vocab_size", 0))
    if highest >= rows:
        message = f"{path} has token id {highest}, the model {rows} rows: not of this model"
        return fault("tokenizer", message, mend)
    return ok("tokenizer", f"{len(ids)} tokens")


def _token_ids(data: dict[str, Any]) -> set[int]:
    """Ids of a tokenizer.json: a table by token, or a list in the order of ids (unigram)."""
    vocab = data["model"]["vocab"]
    ids = set(vocab.values() if isinstance(vocab, dict) else range(len(vocab)))
    return ids | {token["id"] for token in data.get("added_tokens", [])}


def _check_template(given: str | None, folder: Path) -> Finding:
    if given is not None:
        if Path(given).is_file():
            return ok("template", f"the chat template is {given}")
        return fault("template", f"model.chat_template={given}: no such file", "name a file")
    if read_chat_template(folder):
        return ok("template", "the model has a chat template")
    return warning(
        "template",
        "no chat template: /v1/chat/completions answers 400, completions work",
        "dvi serve model.chat_template=FILE.jinja",
    )


def _check_memory(config: DviConfig, folder: Path, settings: dict[str, Any]) -> Finding:
    """Weights in the served dtype and all cache rows, against the machine's memory."""
    wanted = memory_bytes(config, folder, settings)
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return warning("memory", f"{wanted / 2**30:.1f} GiB needed, the machine does not say")
    text = f"weights and cache take {wanted / 2**30:.1f} of {total / 2**30:.1f} GiB"
    if wanted > 0.9 * total:
        rows = max(config.serving.max_batch_size // 2, 1)
        return fault(
            "memory", text, f"dvi serve serving.max_batch_size={rows} model.dtype=bfloat16"
        )
    return ok("memory", text)


def memory_bytes(config: DviConfig, folder: Path, settings: dict[str, Any]) -> int:
    """Bytes of weights and cache: max_batch_size rows of max_context_len and the widest round."""
    item = DTYPE_BYTES[config.model.dtype]
    stored = DTYPE_BYTES.get(str(settings.get("dtype") or settings.get("torch_dtype")), 2)
    weights = sum(path.stat().st_size for path in weight_files(folder)) * item // stored
    heads = int(settings.get("num_attention_heads", 1))
    kv_heads = int(settings.get("num_key_value_heads") or heads)
    head_dim = int(settings.get("head_dim") or settings.get("hidden_size", 0) // heads)
    positions = config.serving.max_context_len + config.decoding.max_draft_len + 1
    positions = -(-positions // ROW_TILE) * ROW_TILE
    layers = int(settings.get("num_hidden_layers", 0))
    row = positions * 2 * layers * kv_heads * head_dim * item
    return weights + config.serving.max_batch_size * row
