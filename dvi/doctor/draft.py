"""Checks of a draft model: folder, architecture, whole weight files, the target's own tokens.

Owns the finding of ``drafter=model``; says nothing where no such draft is configured.
"""

from __future__ import annotations

from pathlib import Path

from dvi.config import DviConfig
from dvi.doctor.finding import Finding, Level, fault, ok, warning
from dvi.doctor.model import check_files, memory_bytes
from dvi.modeling.pair import check_pair, local_draft_folder
from dvi.modeling.resolve import local_model_path
from dvi.modeling.spec import read_json

NAME = "draft"


def check_draft(config: DviConfig) -> list[Finding]:
    """One finding where a draft model is configured, else none."""
    drafter = config.drafter
    if "model" not in (drafter.kind, drafter.learned if drafter.kind == "auto" else ""):
        return []
    mend = f"dvi models draft NEW-DIR --layers 0,1 {config.model.path}"
    try:
        draft, target = local_draft_folder(drafter), local_model_path(config.model)
        if draft is None or target is None:
            return [warning(NAME, f"{drafter.path} is compared once both models are downloaded")]
        return [_check_folder(config, target, draft, mend)]
    except ValueError as error:  # ModelRefused too
        return [fault(NAME, str(error), mend)]


def _check_folder(config: DviConfig, target: Path, draft: Path, mend: str) -> Finding:
    settings = read_json(draft / "config.json")
    found = check_files(NAME, config, draft, settings, (mend, mend))
    if found.level is not Level.OK:
        return found
    check_pair(target, draft)
    size = memory_bytes(config, draft, settings) / 2**30
    return ok(NAME, f"{found.message}; {size:.1f} GiB beside the target, the target's tokens")
