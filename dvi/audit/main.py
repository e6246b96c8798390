"""The order of an audit: read, decode plainly, compare, report.

Owns the exit status; every part knows only its own work.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from dvi.audit.pairs import Divergence
from dvi.audit.report import AuditReport, Setting, make_report
from dvi.audit.sources import Compared, prompt_pairs, read_stored, stored_pairs
from dvi.config import DviConfig
from dvi.config.cores import decode_threads
from dvi.config.home import replay_url
from dvi.config.secrets import mask
from dvi.decoding.gap import choice_gap, near_tie_bound
from dvi.modeling.threads import set_thread_modes

log = logging.getLogger(__name__)


def run_audit(config: DviConfig, run_dir: Path, *, as_json: bool) -> int:
    """Compare, print, and write audit.json; 1 if an answer differs by more than the bound.

    A store that is empty is no fault. Raises ValueError with one line where nothing can be
    compared, and ReplayStoreError.
    """
    set_thread_modes(decode_threads(config.model))
    if config.audit.prompts is not None:
        compared = prompt_pairs(config, Path(config.audit.prompts))
    else:
        traces = read_stored(config)
        if not traces:
            print(f"no answers to audit in {mask(replay_url(config))}", file=sys.stderr)
            if as_json:
                print("null")
            return 0
        log.info("decoding %d stored answers plainly", len(traces))
        compared = stored_pairs(config, traces)
    report = _judge(config, compared)
    text = json.dumps(report.as_json(), indent=1)
    (run_dir / "audit.json").write_text(text + "\n", encoding="utf-8")
    print(text if as_json else "\n".join([*report.details(), report.summary()]))
    return 0 if report.passed else 1


def _judge(config: DviConfig, compared: Compared) -> AuditReport:
    parts = compared.opened.engine.parts
    audit = config.audit
    automatic = "exact" if compared.deterministic else "near_tie"
    setting = Setting(
        mode=automatic if audit.mode == "auto" else audit.mode,
        max_margin=near_tie_bound(parts.target) if audit.max_margin is None else audit.max_margin,
        source="the replay store" if audit.prompts is None else "the prompt file",
        deterministic=compared.deterministic,
        system_fingerprint=compared.opened.system_fingerprint,
    )

    def gap(item: Divergence) -> float | None:
        if item.tokens is None:
            return None
        request, common = item.pair.request, item.pair.served.token_ids[: item.position]
        return choice_gap(parts.target, parts.grammars, request, common, item.tokens)

    return make_report(compared.pairs, compared.skipped, setting, gap)
