"""The order of the checks and what is printed of them.

Owns nothing but the order; every check knows only its own subject.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dvi.config import DviConfig
from dvi.config.secrets import mask
from dvi.doctor.draft import check_draft
from dvi.doctor.environment import (
    check_device,
    check_disk,
    check_kernels,
    check_packages,
    check_python,
    check_threads,
)
from dvi.doctor.finding import Finding, Level, fault, ok
from dvi.doctor.model import check_model
from dvi.doctor.service import check_access, check_port, check_wandb
from dvi.doctor.state import check_adapters, check_folder, check_store


def examine(config: DviConfig) -> list[Finding]:
    """All findings, in the order in which things depend on each other. Creates nothing."""
    return [
        check_python(),
        check_packages(),
        check_threads(config),
        check_kernels(),
        check_disk(config),
        check_device(config),
        *check_model(config),
        *check_draft(config),
        check_folder(config),
        check_store(config),
        check_adapters(config),
        check_access(config),
        check_port(config),
        check_wandb(config),
    ]


def examine_deeply(config: DviConfig) -> Finding:
    """Whether the model itself can be read and its template renders: imports torch, seconds."""
    from dvi.modeling.hf import read_spec
    from dvi.modeling.resolve import resolve_model_path
    from dvi.modeling.tokenizer import Tokenizer

    try:
        folder = resolve_model_path(config.model)
        spec = read_spec(folder, config.serving.max_context_len)
        tokenizer = Tokenizer.load(folder, config.model.chat_template)
        num_tokens = 0
        if tokenizer.has_chat_template:
            greeting = [{"role": "user", "content": "Hello."}]
            num_tokens = len(tokenizer.apply_chat_template(greeting))
    except ValueError as error:
        return fault("forward", str(error), "dvi models fetch smollm2-135m")
    text = f"{spec.num_layers} layers of {spec.hidden_size}; a greeting has {num_tokens} tokens"
    return ok("forward", text)


def as_rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """Plain data for --json, secrets masked."""
    rows = [dataclasses.asdict(one) for one in findings]
    return [{name: mask(str(value)) for name, value in row.items()} for row in rows]


def lines(findings: Sequence[Finding]) -> list[str]:
    """A line a finding, the command that mends it below, a count at the end."""
    text = []
    for one in findings:
        text.append(mask(f"{one.level.value:<9}{one.name:<11}{one.message}"))
        if one.mend:
            text.append(f"{'':<9}{'mend:':<11}{one.mend}")
    faults = sum(one.level is Level.FAULT for one in findings)
    warnings = sum(one.level is Level.WARNING for one in findings)
    text.append(f"{len(findings)} checks, {faults} faults, {warnings} warnings")
    return text
