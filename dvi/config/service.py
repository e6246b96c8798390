"""Config groups of the outside: serving, tracking, run, bench, audit, demo."""

from __future__ import annotations

from dataclasses import dataclass

from dvi.config.field import option


@dataclass
class ServingConfig:
    """The HTTP server."""

    host: str = option("127.0.0.1", "address to bind")
    port: int = option(8000, "port to bind; 0 takes a free one", low=0, high=65535)
    api_key: str | None = option(None, "keys, comma separated; prefer DVI_API_KEY")
    api_key_file: str | None = option(None, "file with one key a line")
    model_name: str | None = option(None, "id in /v1/models; null is the last part of model.path")
    max_batch_size: int = option(8, "choices decoded at once", low=1, high=64)
    max_queue: int = option(256, "choices waiting; beyond it 429", low=1)
    max_context_len: int = option(2048, "prompt and answer together, in tokens", low=16)
    max_body_bytes: int = option(
        4 << 20,
        "size of a request's body; beyond it 413: 500,000 token ids or four times that in text,"
        " and parsing a whole one stops all answers for about 0.1 s",
        low=1024,
    )
    max_request_s: float | None = option(
        600.0, "time of one request, waiting included; beyond it 408, null is no limit", low=1
    )
    tool_parser: str = option(
        "auto",
        "form in which tool calls are written and found: hermes is JSON in <tool_call>, json is "
        "JSON alone, auto goes by the chat template; none leaves calls in the text",
        choices=("auto", "hermes", "json", "none"),
    )
    stuck_after_s: float = option(
        60.0, "time without a decode step after which /ready says 503", low=1
    )
    drain_timeout_s: float = option(25.0, "time running requests get on SIGTERM", low=0)
    metrics_open: bool = option(False, "/metrics without a key")
    vllm_metric_names: bool = option(
        False, "/metrics also has vLLM's four vllm:spec_decode_num_*_total counters"
    )
    admin_key_file: str | None = option(
        None, "file with one admin key a line; DVI_ADMIN_KEY does the same"
    )
    allowed_hosts: str | None = option(
        None, "Host names besides loopback that a server without a key answers to, comma separated"
    )
    cors_origins: str | None = option(
        None, "origins of web pages that may call, comma separated; null is none"
    )


@dataclass
class TrackingConfig:
    """Where curves go."""

    kind: str = option("jsonl", "sink of metric rows", choices=("jsonl", "wandb", "none"))
    max_bytes: int = option(64 << 20, "size of metrics.jsonl before it is rotated", low=1 << 12)
    interval_s: float = option(5.0, "time between rows of the server", low=0.1)
    project: str = option("dvi", "W&B project; WANDB_PROJECT wins")
    entity: str | None = option(None, "W&B entity; WANDB_ENTITY wins")


@dataclass
class RunConfig:
    """This launch."""

    seed: int = option(0, "of everything random but requests", low=0)
    log_format: str = option("text", "log lines on stderr", choices=("text", "json"))
    resume: bool = option(False, "go on from the checkpoint in the run folder")
    dir: str | None = option(None, "run folder; null is a new one under DVI_HOME/runs")


@dataclass
class BenchConfig:
    """`dvi bench`."""

    kind: str = option(
        "engine",
        "engine: ways of decoding side by side; http: streaming clients of a server",
        choices=("engine", "http"),
    )
    url: str | None = option(
        None, "http: a running server to measure; null starts one on throw-away state"
    )
    max_streams: int = option(
        32, "http: most streams at once; those of 1, 8 and 32 below it are measured too", low=1
    )
    answers: int = option(2, "http: answers that each stream asks for, one after the other", low=1)
    hostile: bool = option(
        False, "http: once more beside 1 MB bodies, 200 KB schemas and a dashboard's polls"
    )
    parts: str = option(
        "default", "what is measured: names joined by +, or default, or all (docs/bench.md)"
    )
    prompts: str | None = option(
        None, "JSONL file of prompts, measured by category instead of the built-in domains"
    )
    adapters: str | None = option(
        None, "registry folder whose live version drafts; null trains on the first requests"
    )
    cell: str = option(
        "all",
        "the one batch size and temperature that stream, spec and peers measure; sampled is at 0.8",
        choices=("all", "greedy-1", "greedy-8", "sampled-1", "sampled-8"),
    )
    sources: bool = option(True, "each source of drafter=auto is measured alone as well")
    num_prompts: int = option(2, "prompts of each domain or category and measurement", low=1)
    warm_requests: int = option(20, "requests of each domain before any is timed", low=0)
    train_steps: int = option(30, "optimizer steps on the first requests; 0 trains none", low=0)
    max_tokens: int = option(80, "tokens a prompt", low=1)
    timed_steps: int = option(20, "decode steps timed for each way and batch size", low=1)
    swaps: int = option(200, "exchanges of random adapters that are timed", low=1)
    repeats: int = option(3, "interleaved repeats; medians are reported", low=1)


@dataclass
class AuditConfig:
    """`dvi audit`."""

    prompts: str | None = option(
        None, "JSONL file of prompts, decoded with the draft and plainly; null: stored traces"
    )
    mode: str = option(
        "auto",
        "exact: any difference fails; near_tie: one above max_margin fails; auto: exact if "
        "decoding.deterministic, else near_tie",
        choices=("auto", "exact", "near_tie"),
    )
    max_margin: float | None = option(
        None,
        "largest gap of a near-tie, in logits; null: 1e-3, of float16 and 8-bit weights 0.1, of "
        "bfloat16 0.5",
        low=0,
    )
    max_traces: int = option(64, "stored answers or prompts that are decoded again", low=1)
    max_age_s: float | None = option(None, "older answers are left out; null is none", low=0)
    share: float = option(1.0, "share of the stored answers, drawn by id", low=0, high=1)
    max_tokens: int = option(64, "tokens an answer to a prompt of the file", low=1)
    temperature: float = option(0.0, "of the answers to prompts of the file; 0 is greedy", low=0)


@dataclass
class DemoConfig:
    """`dvi demo`."""

    prompts_per_domain: int = option(40, "prompts of each of the three domains", low=10, high=80)
    streams: int = option(4, "requests in flight", low=1)
    sampled_prompts: int = option(15, "prompts of the sampled pass", low=0)
    tool_prompts: int = option(24, "tool calls; none where the model has no chat template", low=0)
    max_tokens: int = option(48, "tokens an answer", low=1)
    deterministic: bool = option(
        True, "every answer must be identical, bit for bit; false: but for near-ties"
    )
    control: bool = option(False, "run the same stream with the trainer off as well")
    seed: int = option(0, "of the templates", low=0)
