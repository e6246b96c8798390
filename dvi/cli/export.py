"""`dvi adapters export N --to DIR`: a version as a model that others load.

Owns the folder and the note in it; complete or absent. Does not know how a draft becomes a model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dvi.cli.args import UsageError
from dvi.cli.out import print_json
from dvi.config import DviConfig
from dvi.config.home import adapters_dir
from dvi.drafting import DRAFTERS, DraftBranch, draft_branch, lora
from dvi.drafting.export import config_of_version, draft_as_model, module_names
from dvi.drafting.module import DraftModule
from dvi.drafting.version import checked_tensors
from dvi.modeling.hf_export import write_causal_lm
from dvi.modeling.pair import draft_folder
from dvi.modeling.resolve import resolve_model_path
from dvi.modeling.target import TargetModel
from dvi.registry import Registry
from trainers.background import open_target

NOTE = """\
# Draft of {model}, adapter version {version}

A plain causal LM of {layers} layers in {dtype}, a draft for speculative decoding: it answers
nothing well by itself. `DRAFT` is this folder{inside}, `TARGET` the model that it drafts for:
{target}

vLLM:

    vllm serve TARGET --speculative-config \\
      '{{"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": 4}}'

SGLang:

    python -m sglang.launch_server --model-path TARGET --speculative-algorithm STANDALONE \\
      --speculative-draft-model-path DRAFT --speculative-num-steps 4 \\
      --speculative-eagle-topk 1 --speculative-num-draft-tokens 5

transformers:

    target.generate(**inputs, assistant_model=AutoModelForCausalLM.from_pretrained("DRAFT"))
"""
PEFT_NOTE = """
PEFT: `base/` is the untrained draft, `adapter/` what was learned on it. They belong together: put
the adapter on nothing else.

    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), "adapter")
"""


@dataclass(frozen=True, slots=True)
class Export:
    """One version on its target; ``tensors`` None is the untrained draft."""

    source: Path  # whose config and tokenizer are written: the target's or the draft model's folder
    served: Path  # the target's folder
    target: TargetModel
    branch: DraftBranch
    version: int
    tensors: Mapping[str, Tensor] | None


def export_version(config: DviConfig, version: int, flags: Mapping[str, str]) -> int:
    """Write the model; exit status 0. Raises ValueError where there is nothing to export."""
    if "--to" not in flags:
        raise UsageError("usage: dvi adapters export N --to DIR [--peft]")
    folder = Path(flags["--to"]).expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--to {folder} is there already and not empty: name a new folder")
    export = open_version(config, version)
    write_folder(folder, export, with_peft="--peft" in flags)
    if "--json" in flags:
        print_json({"version": version, "folder": str(folder)})
    else:
        print(f"version {version} is in {folder}; README.md there says how others load it")
    return 0


def open_version(config: DviConfig, version: int) -> Export:
    """Target and checked tensors of a version; its own drafter counts, not the configured one."""
    if DRAFTERS[config.drafter.kind].branch is None:
        raise ValueError(f"drafter={config.drafter.kind} has no weights: nothing to export")
    adapter = None
    if version:
        adapter = Registry(adapters_dir(config), config.registry.keep_versions).read(version)
        config = replace(config, drafter=config_of_version(config.drafter, adapter))
    target, fingerprint = open_target(config)
    branch = draft_branch(config.drafter, target)
    tensors = None if adapter is None else checked_tensors(adapter, branch.layout, fingerprint)
    served = resolve_model_path(config.model)
    source = draft_folder(config.drafter) if branch.layers else served
    return Export(source, served, target, branch, version, tensors)


def write_folder(folder: Path, export: Export, *, with_peft: bool) -> None:
    """Write beside ``folder``, then rename: it is complete or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        part.chmod(0o777 & ~_umask())
        if with_peft:
            _write_pair(part, export)
        else:
            weights = draft_as_model(export.target, export.branch, export.tensors)
            write_causal_lm(export.source, weights, part)
        (part / "README.md").write_text(_note(export, with_peft=with_peft), encoding="utf-8")
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_pair(part: Path, export: Export) -> None:
    branch = export.branch
    write_causal_lm(export.source, draft_as_model(export.target, branch, None), part / "base")
    tensors = export.tensors
    if tensors is None:
        untrained = lora.wrap(DraftModule(branch), branch.layout, torch.Generator().manual_seed(0))
        tensors = lora.adapter_tensors(untrained)
    (part / "adapter").mkdir()
    lora.save_renamed(branch.layout, tensors, module_names(branch), part / "adapter")


def _note(export: Export, *, with_peft: bool) -> str:
    note = NOTE.format(
        model=export.source.name,
        version=export.version,
        layers=len(export.branch.layers)
        or export.target.exit_layer + (export.branch.block is not None),
        dtype=str(export.target.dtype).removeprefix("torch."),
        target=export.served,
        inside=", merged (`merge_and_unload` below and save)" if with_peft else "",
    )
    return note + (PEFT_NOTE if with_peft else "")


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
