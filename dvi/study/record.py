"""Recorded answers: the target answers each prompt once, whatever is studied afterwards.

Owns the prompt files; answering, its progress and its resume are those of ``dvi train data=file``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dvi.config import DviConfig
from dvi.study.streams import Request, StreamPlan
from dvi.traffic.open_prompts import open_prompts
from dvi.traffic.stream import make_stream
from dvi.types import Trace
from trainers.prepared import open_rows, prepare

GROUP = 15  # prompts of a file: longer streams go on with what shorter ones recorded
OPEN = "open"  # the domain in which no two prompts are alike

Recording = dict[Request, Trace]
Told = Callable[[str], None]


def record(
    config: DviConfig, plans: Sequence[StreamPlan], prompts_dir: Path, told: Told
) -> dict[float, Recording]:
    """Traces of every request of the streams, by temperature; answers what is missing."""
    recordings: dict[float, Recording] = {}
    for temperature in sorted({plan.temperature for plan in plans}):
        needed: dict[str, int] = {}
        for plan in plans:
            if plan.temperature == temperature:
                for domain, count in plan.needed().items():
                    needed[domain] = max(count, needed.get(domain, 0))
        recordings[temperature] = {
            request: trace
            for domain, count in needed.items()
            for first in range(0, count, GROUP)
            for request, trace in _group(
                config, (domain, first), temperature, prompts_dir, told
            ).items()
        }
    return recordings


def chats(domain: str, first: int) -> list[list[dict[str, str]]]:
    """The messages of the prompts ``first`` to ``first + GROUP`` of a domain."""
    if domain == OPEN:
        texts = open_prompts(first + GROUP)[first:]
        return [[{"role": "user", "content": text}] for text in texts]
    return [prompt.messages() for prompt in make_stream(first + GROUP, 0, (domain,))[first:]]


def _group(
    config: DviConfig, group: Request, temperature: float, prompts_dir: Path, told: Told
) -> Recording:
    domain, first = group
    prompts_dir.mkdir(parents=True, exist_ok=True)
    path = prompts_dir / f"{domain}-{first:04d}.jsonl"
    lines = [json.dumps({"messages": messages}) for messages in chats(domain, first)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = replace(config.data, kind="file", path=str(path), temperature=temperature)

    def answered(done: int, total: int) -> None:
        told(f"{domain} from {first} at temperature {temperature:g}: {done} of {total} answered")

    folder = prepare(replace(config, data=data), answered)
    with open_rows(folder, config.replay) as store:
        rows = store.read({}, GROUP + 1)
    if len(rows) != GROUP:
        raise ValueError(f"{folder} has {len(rows)} of {GROUP} answers: remove it")
    return {
        (domain, first + i): replace(
            row.trace, request_id=f"{domain}-{first + i}@{temperature:g}", domain=domain
        )
        for i, row in enumerate(rows)
    }
