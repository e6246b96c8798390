"""The order of an HTTP bench: streams, the engine alone, hostile clients, a long prompt; in turn.

Owns which passes are made on which server; every part knows only its own work.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch

from dvi.bench.http.alone import AloneEngine, open_alone
from dvi.bench.http.bodies import CHAT, long_prompt, streamed
from dvi.bench.http.passes import Address, hostile_beside, run_streams
from dvi.bench.http.report import Found, make_report, show
from dvi.bench.http.rows import Row, load_rows
from dvi.bench.http.timing import Pass
from dvi.config import DviConfig
from dvi.config.cores import decode_threads
from dvi.demo.server import Server, ending_in_order, forwarded_overrides
from serving.main import keep_what_is_loaded, set_process_modes

log = logging.getLogger(__name__)

Json = dict[str, Any]

LEVELS = (1, 8, 32)
LONG_PROMPT_LEN = 2000
LONG_JOINS_AFTER_S = 1.0
LONG_BESIDE = 8  # streams that a long prompt joins
FIRST_ANSWER_S = 120.0  # a busy server may take long, and is measured as it is
NO_TEMPLATE = '"no_chat_template"'  # the server's code for it
SCOPE = "request"  # no answer is faster for having been given before: every repeat does equal work


@dataclass(slots=True)
class Subject:
    """What is measured: a server, and the same engine without one."""

    config: DviConfig
    to: Address
    rows: list[Row]
    alone: AloneEngine | None  # None beside a server that is not ours
    found: Found = field(default_factory=Found)

    def levels(self) -> list[int]:
        """Numbers of streams, the largest last."""
        most = self.config.bench.max_streams
        return [*(level for level in LEVELS if level < most), most]

    def prompts(self, num_streams: int) -> list[list[Row]]:
        """Rows of each stream."""
        places = [
            [stream + turn * num_streams for turn in range(self.config.bench.answers)]
            for stream in range(num_streams)
        ]
        return [[self.rows[place % len(self.rows)] for place in own] for own in places]

    def http(self, num_streams: int) -> Pass:
        """One pass over HTTP."""
        tokens = self.config.bench.max_tokens
        return run_streams(
            self.to,
            [
                {
                    "delay_s": 0.0,
                    "calls": [streamed(row, self.to.model, tokens, 0) for row in own],
                }
                for own in self.prompts(num_streams)
            ],
        )


def bench_config(config: DviConfig) -> DviConfig:
    """Server and engine alone alike: a row for every stream, no learning, no memory of others."""
    rows = config.bench.max_streams + (1 if config.bench.hostile else 0)
    return dataclasses.replace(
        config,
        serving=dataclasses.replace(config.serving, max_batch_size=rows),
        drafter=dataclasses.replace(config.drafter, memory_scope=SCOPE),
        trainer=dataclasses.replace(config.trainer, enabled=False),
    )


def _warm_up(subject: Subject) -> None:
    log.info("warming up")
    most = subject.config.bench.max_streams
    subject.http(most)
    if subject.alone is not None:
        subject.alone.run(subject.prompts(most), subject.config.bench.max_tokens)


def _repeat(subject: Subject) -> None:
    """Every pass once; the ones that are compared come one after the other."""
    found, config = subject.found, subject.config.bench
    for level in subject.levels():
        found.add(f"{level} streams", subject.http(level))
    most = config.max_streams
    if subject.alone is not None:
        found.add("engine alone", subject.alone.run(subject.prompts(most), config.max_tokens))
    if config.hostile:
        with hostile_beside(subject.to) as answered:
            found.add("hostile", subject.http(most))
        found.hostile.append(answered)


def _long_prompt_joins(subject: Subject) -> Pass:
    """A long prompt joins streams that are running; it is the last stream."""
    tokens = subject.config.bench.max_tokens
    streams = [
        {"delay_s": 0.0, "calls": [streamed(row, subject.to.model, tokens, 0) for row in own]}
        for own in subject.prompts(min(LONG_BESIDE, subject.config.bench.max_streams))
    ]
    longest = min(LONG_PROMPT_LEN, subject.config.serving.max_context_len - tokens)
    late = {
        "delay_s": LONG_JOINS_AFTER_S,
        "calls": [long_prompt(longest, subject.to.model)],
    }
    return run_streams(subject.to, [*streams, late])


def _measure(subject: Subject) -> None:
    _warm_up(subject)
    for repeat in range(subject.config.bench.repeats):
        log.info("repeat %d of %d", repeat + 1, subject.config.bench.repeats)
        _repeat(subject)
    subject.found.add("long prompt", _long_prompt_joins(subject))


def _foreign(url: str) -> Address:
    """A running server's address and model. Raises ValueError where nobody answers."""
    key = os.environ.get("DVI_API_KEY", "").split(",")[0].strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{url.rstrip('/')}/v1/models", headers=headers, timeout=10.0)
        answer.raise_for_status()
        model = str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"bench.url={url} lists no model: {type(error).__name__}") from error
    return Address(url.rstrip("/"), model, headers)


def _require_template(to: Address, rows: list[Row]) -> None:
    """Raises ValueError where rows are chats and the model has no chat template."""
    if not any("messages" in row for row in rows):
        return
    body = {"model": to.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    answer = httpx.post(to.url + CHAT, json=body, headers=to.headers, timeout=FIRST_ANSWER_S)
    if answer.status_code == 400 and NO_TEMPLATE in answer.text:
        raise ValueError(
            f"{to.model} has no chat template and the prompts are chats: "
            'bench.prompts=FILE.jsonl with rows {"prompt": "text"}'
        )


@contextmanager
def _open(config: DviConfig, run_dir: Path) -> Iterator[Subject]:
    rows = load_rows(config.bench)
    if config.bench.url is not None:
        to = _foreign(config.bench.url)
        _require_template(to, rows)
        yield Subject(config, to, rows, None)
        return
    config = bench_config(config)
    overrides = [
        *forwarded_overrides(config),
        f"serving.max_batch_size={config.serving.max_batch_size}",
        f"serving.max_context_len={config.serving.max_context_len}",
    ]
    with ExitStack() as stack:
        stack.enter_context(ending_in_order())
        server = stack.enter_context(Server(overrides, run_dir / "server"))
        to = dataclasses.replace(_foreign(server.url), headers={})
        _require_template(to, rows)
        yield Subject(config, to, rows, stack.enter_context(open_alone(config, run_dir)))


def run_http_bench(config: DviConfig, run_dir: Path, *, as_json: bool) -> int:
    """Run it all; 1 if an answer to a stream failed, else 0.

    Raises ValueError and RuntimeError with one line for what cannot be measured.
    """
    set_process_modes()  # those of the server, so that only HTTP is between the two
    torch.set_num_threads(decode_threads(config.model))
    start_s = time.monotonic()
    with _open(config, run_dir) as subject:
        keep_what_is_loaded()
        _measure(subject)
    for path in run_dir.glob("alone.sqlite*"):
        path.unlink()
    report = make_report(config, subject.to.model, subject.found, time.monotonic() - start_s)
    show(report, run_dir, as_json=as_json)
    return 1 if report["num_failed"] else 0
