"""Hashes that say which base a draft was trained for and which system gave an answer.

Owns what goes into them; does not know who compares them. Hashes of files are remembered by path,
size and modification time, since weights take seconds to read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import torch

import dvi
from dvi.config.files import replace_file
from dvi.config.home import dvi_home
from dvi.modeling.target import TargetModel
from dvi.types import Verification

BASE_FILES = ("config.json", "model.safetensors.index.json", "tokenizer.json")


def base_fingerprint(
    path: Path,
    exit_layer: int,
    block_layer: int,
    memory: Path | None = None,
    *,
    quantization: str = "none",
) -> str:
    """Hex hash of weights, config, tokenizer, k, block source, 8 bits: what a draft depends on.

    ``memory`` is the JSON file of remembered hashes (default in DVI_HOME); it is optional and
    exchanged atomically, and where it cannot be written the files are read again next time.
    """
    memory = memory or dvi_home() / "cache" / "file_hashes.json"
    known = _remembered(memory)
    digest = hashlib.sha256(f"exit={exit_layer} block={block_layer}".encode())
    if quantization != "none":
        digest.update(quantization.encode())
    files = [path / name for name in BASE_FILES] + sorted(path.glob("*.safetensors"))
    fresh: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            continue
        key = _key(file)
        fresh[key] = known.get(key) or _hash_file(file)
        digest.update(f"{file.name} {fresh[key]}\n".encode())
    if not fresh.items() <= known.items():
        others = {key: value for key, value in known.items() if _is_current(key)}
        _remember(memory, others | fresh)
    return digest.hexdigest()


def system_fingerprint(
    model: TargetModel,
    base: str,
    quantization: str,
    verification: Verification = Verification.COUPLED,
) -> str:
    """Short hash of all that decides an answer but the request: never the draft.

    ``base`` is any hash of the target's weights (``base_fingerprint`` with fixed k and block).
    Under rejection it promises the distribution of answers only, since their tokens depend on the
    draft.
    """
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu"
    parts = (
        base,
        quantization,
        str(model.dtype),
        device,
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        dvi.__version__,
        model.packing.value,
        "deterministic" if model.deterministic else "fast",
        verification.value,
    )
    return "fp_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _key(file: Path) -> str:
    stat = file.stat()
    return f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"


def _is_current(key: str) -> bool:
    """Whether the file is there as it was; others are not remembered for ever."""
    file = Path(key.rsplit("|", 2)[0])
    return file.is_file() and _key(file) == key


def _hash_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remembered(memory: Path) -> dict[str, str]:
    try:
        content = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in content.items()} if isinstance(content, dict) else {}


def _remember(memory: Path, hashes: dict[str, str]) -> None:
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        replace_file(memory, json.dumps(hashes).encode(), durable=False)
