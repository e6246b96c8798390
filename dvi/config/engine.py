"""Config groups that decide how tokens are made: model, drafter, decoding."""

from __future__ import annotations

from dataclasses import dataclass

from dvi.config.field import option


@dataclass
class ModelConfig:
    """The target."""

    path: str = option("smollm2-135m", "local folder, name from `dvi models list`, or hub id")
    revision: str | None = option(None, "hub revision; null is the default branch")
    trust_remote_code: bool = option(
        False, "false is the only value: no code that a repository ships is run"
    )
    dtype: str = option(
        "float32", "weights and arithmetic", choices=("float32", "bfloat16", "float16")
    )
    device: str = option(
        "auto", "auto takes a GPU if there is one", choices=("auto", "cpu", "cuda")
    )
    quantization: str = option(
        "none",
        "int8: 8-bit weights, answers are those of the 8-bit target (CPU only)",
        choices=("none", "int8"),
    )
    packed_weights: str = option(
        "auto",
        "where no compiled kernels run: hold float matrices a second time, packed for passes of"
        " several positions; auto: if memory allows",
        choices=("auto", "always", "never"),
    )
    num_threads: int = option(0, "CPU threads of the decode loop; 0 takes all cores", low=0)
    chat_template: str | None = option(
        None, "file with a chat template (Jinja) to use instead of the model's own"
    )


@dataclass
class DrafterConfig:
    """The draft branch. Every kind reads only what it needs."""

    kind: str = option(
        "auto",
        "who proposes tokens",
        choices=("auto", "block", "head", "model", "memory", "none"),
    )
    learned: str = option(
        "block",
        "drafter=auto: the learned draft beside the memory",
        choices=("block", "head", "model"),
    )
    path: str | None = option(
        None, "the model of drafter=model: local folder, name of `dvi models list`, or hub id"
    )
    exit_layer: int = option(2, "k, number of shallow layers under the draft", low=1)
    block_layer: int | None = option(
        None, "target layer that the draft block copies; null is layer k"
    )
    zero_block_output: bool = option(
        True, "start with the block's two output projections at zero (learns far sooner)"
    )
    lora_rank: int = option(32, "LoRA rank on the matrices of the block or draft model", low=1)
    lora_alpha: float = option(
        64.0, "LoRA alpha on the matrices of the block or draft model", low=0
    )
    head_lora_rank: int = option(16, "LoRA rank on the output head", low=1)
    head_lora_alpha: float = option(16.0, "LoRA alpha on the output head", low=0)
    draft_vocab_size: int | None = option(
        8192, "rows of the draft head, those of the most frequent tokens; null is all rows", low=1
    )
    memory_scope: str | None = option(
        None,
        "whose served answers the memory reads; null: global with at most one API key, else user",
        choices=("request", "user", "global", "off"),
    )
    memory_max_tokens: int = option(
        200_000,
        "tokens of served answers and of their prompts' ends remembered, up to 0.5 KB each; the "
        "oldest leave",
        low=1,
    )
    memory_min_match: int = option(1, "shortest end of the text that is looked up", low=1, high=8)
    memory_max_match: int = option(16, "longest end of the text that is compared", low=1, high=64)


@dataclass
class DecodingConfig:
    """One draft-verify-commit round."""

    max_draft_len: int = option(8, "most tokens proposed a round", low=0, high=32)
    draft_len: int = option(4, "tokens proposed a round where adaptive is false", low=0, high=32)
    adaptive: bool = option(
        True, "source and length of highest goodput each step, nothing included"
    )
    probe_interval_rounds: int = option(
        64,
        "a source that does not pay is tried once in so many rounds, a dear one less often (at 64: "
        "some 1% of decode time)",
        low=1,
    )
    cost_profile: str | None = option(
        None,
        "JSON file with times of passes and draft steps, taken as it is; null measures them at "
        "first start and follows what steps take",
    )
    verification: str = option(
        "coupled",
        "coupled: answers do not depend on the draft; rejection: only their distribution does not",
        choices=("coupled", "rejection"),
    )
    deterministic: bool = option(
        False,
        "equal bits for any batch, width and chunking, checked at start; compiled kernels have"
        " them in either mode",
    )
    cuda_graphs: bool = option(
        True, "on a GPU, record decode steps once a shape and replay them; a CPU has none"
    )
    prefix_scope: str | None = option(
        None,
        "whose computed prompts a request may start from; null: global with at most one API key, "
        "else user; request: its own choices only",
        choices=("request", "user", "global", "off"),
    )
    prefill_chunk_len: int = option(256, "prompt tokens a step while nothing else runs", low=8)
    shared_prefill_chunk_len: int = option(
        64, "prompt tokens a step beside running requests", low=8
    )
