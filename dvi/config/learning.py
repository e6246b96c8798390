"""Config groups of the learning side: objective, data, replay, trainer, registry, drift."""

from __future__ import annotations

from dataclasses import dataclass

from dvi.config.field import option


@dataclass
class ObjectiveConfig:
    """Loss terms and their KL -> RL schedule (DVI, arXiv 2510.05421)."""

    kind: str = option("kl", "preset", choices=("kl", "dvi", "ce", "pg", "osd", "lk"))
    kl_weight: float = option(1.0, "forward KL to the target, all committed positions", low=0)
    ce_weight: float = option(0.5, "cross-entropy on the committed token, all positions", low=0)
    reward_ce_weight: float = option(0.0, "cross-entropy on accepted proposals", low=0)
    pg_weight: float = option(0.0, "policy gradient on judged proposals, after warm-up", low=0)
    entropy_weight: float = option(0.0, "entropy bonus of the draft", low=0)
    osd_weight: float = option(0.0, "forward KL where a neural proposal was rejected", low=0)
    lk_weight: float = option(0.0, "loss of expected acceptance, all positions", low=0)
    lk_form: str = option(
        "log",
        "log: -log(acceptance); blend: w KL + (1 - w)(1 - acceptance)",
        choices=("log", "blend"),
    )
    lk_decay: float = option(3.0, "blend: w = exp(-lk_decay * acceptance)", low=0)
    lk_mode: str | None = option(
        None,
        "acceptance law of sampled requests; null is decoding.verification",
        choices=("coupled", "rejection"),
    )
    warmup_steps: int = option(0, "optimizer steps of pure KL before the reward terms", low=0)
    ramp_steps: int = option(0, "optimizer steps over which reward terms rise and KL falls", low=0)
    kl_floor: float = option(1.0, "share of kl_weight left after the ramp", low=0, high=1)
    baseline_decay: float = option(0.9, "decay of the reward baseline", low=0, high=1)
    max_lag: int = option(
        8, "oldest adapter version behind the newest that reward terms use", low=0
    )


@dataclass
class DataConfig:
    """Where `dvi train` takes its rows from."""

    kind: str = option(
        "replay",
        "replay: the store that `dvi serve` fills; file: data.path",
        choices=("replay", "file"),
    )
    path: str | None = option(None, "Parquet or JSONL file, or a folder of them")
    max_rows: int | None = option(None, "rows taken from the start; null is all", low=2)
    prompt_as: str | None = option(
        None,
        "a prompt that is text is a user's message (chat) or the text itself (text); "
        "null is chat where the model has a template",
        choices=("chat", "text"),
    )
    max_tokens: int = option(256, "tokens of an answer that the target gives", low=1)
    temperature: float = option(0.0, "of the answers that the target gives; 0 is greedy", low=0)
    batch_size: int = option(8, "prompts that the target answers at once", low=1, high=64)


@dataclass
class ReplayConfig:
    """The trace store. It holds prompts and answers as token ids."""

    url: str | None = option(
        None, "sqlite:///PATH or postgresql+psycopg://...; null is replay.sqlite in state_dir"
    )
    max_bytes: int = option(1 << 30, "live row bytes; the oldest rows leave first", low=1 << 16)
    max_age_days: float = option(30.0, "rows older than this are erased", low=0)
    log_content: bool | None = option(
        None, "keep token ids; null is true on loopback and must be set elsewhere"
    )
    queue_rows: int = option(256, "traces waiting for the writer before new ones drop", low=1)
    top_ids: int = option(64, "target logits kept a position", low=1)


@dataclass
class TrainerConfig:
    """The learner. Names that Hugging Face users know mean the same here."""

    enabled: bool = option(True, "train in the background while serving")
    learning_rate: float = option(4e-3, "AdamW, constant after warm-up", low=0)
    warmup_steps: int = option(8, "linear warm-up", low=0)
    adam_beta1: float = option(0.9, "AdamW", low=0, high=1)
    adam_beta2: float = option(0.99, "AdamW", low=0, high=1)
    weight_decay: float = option(0.0, "AdamW", low=0)
    max_grad_norm: float = option(1.0, "clip of the global gradient norm", low=0)
    batch_size: int = option(4, "traces of a batch, shared by the processes of a run", low=1)
    gradient_accumulation_steps: int = option(
        1, "batches whose gradients make one step, forwarded one after the other", low=1
    )
    mixed_precision: str = option(
        "no",
        "bf16: the trained forward in bfloat16, values and loss stay float32",
        choices=("no", "bf16"),
    )
    newest_share: float = option(0.75, "share of a batch from the newest traces", low=0, high=1)
    newest_rows: int = option(24, "traces that count as newest", low=1)
    reservoir_rows: int = option(512, "older traces kept by reservoir sampling", low=0)
    max_seq_len: int = option(512, "tokens of a trace that are trained on", low=8)
    steps_per_trace: float = option(2.0, "optimizer steps a new trace pays for", low=0)
    max_steps: int = option(400, "steps of one `dvi train` run", low=1)
    publish_steps: int = option(10, "steps between published versions", low=1)
    save_steps: int = option(10, "steps between checkpoints", low=1)
    publish: bool | None = option(
        None, "`dvi train` publishes its candidate; null: a single run does, jobs of a sweep do not"
    )
    min_holdout_traces: int = option(2, "unseen traces that the gate needs", low=1)
    max_holdout_traces: int = option(8, "unseen traces that wait for the gate at most", low=1)
    gate_confidence: float = option(
        0.8, "that a candidate is better, to promote it; 0 promotes all", low=0, high=0.9999
    )
    poll_interval_s: float = option(0.5, "pause between looks at an idle store", low=0.01)
    drift_traces: int = option(24, "new traces after drift that are learned from faster", low=0)
    drift_steps_factor: float = option(2.0, "on steps_per_trace for these traces", low=1)
    max_cpu_share: float = option(
        1.0, "CPU time of the trainer over that of its threads; 1 is no cap", low=0.001, high=1
    )
    payback_s: float = option(
        3600.0,
        "seconds of decoding within which steps have to save the CPU time they take, else one in "
        "eight is made; 0: all are, as always at priority idle",
        low=0,
    )
    num_threads: int = option(1, "CPU threads of the trainer", low=1)
    priority: str | None = option(
        None,
        "CPU time beside serving: idle takes what nobody else wants, low a seventh to a quarter of "
        "a busy core, normal an equal share; null is idle with drafter=auto, else low, and in "
        "`dvi demo` one more",
        choices=("idle", "low", "normal"),
    )


@dataclass
class RegistryConfig:
    """Adapter versions on disk."""

    path: str | None = option(
        None, "folder, shared by all machines that share a store; null is adapters in state_dir"
    )
    keep_versions: int = option(20, "versions kept; the live one and its parents stay", low=2)
    poll_interval_s: float = option(0.5, "how often the server looks for a new version", low=0.01)


@dataclass
class DriftConfig:
    """What is watched in live acceptance, and when it counts as a change."""

    fast_tokens: float = option(500.0, "judged tokens in the fast window", low=1)
    slow_tokens: float = option(10_000.0, "judged tokens in the slow window", low=1)
    min_requests: int = option(15, "requests of a domain before a fall can be drift", low=2)
    tolerance: float = option(0.05, "fall of acceptance that is not drift", low=0, high=1)
    threshold: float = option(2.0, "sum of falls beyond tolerance that is drift", low=0.1)
    guard_confidence: float = option(
        0.999, "that a version accepts less, to roll it back; 0 never does", low=0, high=0.999999
    )
    guard_min_proposals: int = option(24, "first proposals of a version before that", low=1)
    guard_min_drop: float = option(0.05, "smallest fall that is rolled back", low=0, high=1)
    canary_share: float = option(
        0.125,
        "share of rounds that a new version drafts until it has shown itself; 0 is all at once",
        low=0,
        high=0.5,
    )
    canary_min_proposals: int = option(
        16, "first proposals of a canary before it takes over", low=2
    )
    canary_max_wait_s: float = option(
        300.0, "a canary that showed no fall takes over after this, however few rounds", low=0
    )
