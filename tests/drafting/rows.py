"""A bench for drafters: a target, its caches, rows driven as an engine would, random versions.

Owns no assertion; does not know batching policy, stop rules or threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting import DraftBranch, Drafter, DraftModule, DraftRequest, draft_branch, lora
from dvi.drafting.factory import make_drafter
from dvi.drafting.layout import DraftLayout
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter, Manifest
from dvi.sampling import ChoicePoint, choose
from dvi.types import SamplingParams

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
SMALL = {"lora_rank": 3, "lora_alpha": 6.0, "head_lora_rank": 2, "head_lora_alpha": 3.0}


def config_for(kind: str, target: TargetModel, **changes: object) -> DrafterConfig:
    """A drafter config of small ranks that fits the target."""
    fields = {"kind": kind, "exit_layer": target.exit_layer, **SMALL, **changes}
    return DrafterConfig(**fields)


def random_tensors(layout: DraftLayout, seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """Every factor non-zero; ``scale`` multiplies all of them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(layout.dtype)
        for name, shape in layout.shapes().items()
    }  # fmt: skip


def make_adapter(layout: DraftLayout, tensors: Mapping[str, Tensor], version: int = 1) -> Adapter:
    """A version as the registry would read it."""
    manifest = Manifest(
        version=version,
        parent=0,
        base_fingerprint="",
        drafter=layout.drafter,
        sha256={},
        metrics={},
        checkpoint_step=0,
        rows_trained=0,
        created_s=0.0,
    )
    return Adapter(version, tensors, {"alpha_pattern": layout.alphas()}, manifest)


@dataclass
class Bench:
    """One target and drafter with caches of ``num_rows`` rows."""

    target: TargetModel
    drafter: Drafter
    branch: DraftBranch
    cache: KvCache

    def load(self, tensors: Mapping[str, Tensor] | None, version: int = 1) -> None:
        """Prepare and swap in one go."""
        adapter = None
        if tensors is not None:
            adapter = make_adapter(self.branch.layout, tensors, version)
        self.drafter.load(self.drafter.prepare(adapter))


def make_bench(kind: str, target: TargetModel, num_rows: int = 3, **changes: object) -> Bench:
    """A drafter at version 0 on the target."""
    config = config_for(kind, target, **changes)
    return Bench(
        target=target,
        drafter=make_drafter(config, target, num_rows, max_len=200),
        branch=draft_branch(config, target),
        cache=target.new_cache(target.spec.num_layers, num_rows, 200),
    )


@dataclass
class Row:
    """One request on one row. Invariant: the caches hold ``tokens`` but the last."""

    bench: Bench
    row: int
    tokens: list[int]
    params: SamplingParams = GREEDY
    judged: int = 0
    accepted: int = 0
    verify_logits: list[Tensor] = field(default_factory=list)

    def prefill(self, chunk_lens: Sequence[int]) -> None:
        """All of the prompt but its last token, in chunks; the last length repeats."""
        start, turn = 0, 0
        while start < len(self.tokens) - 1:
            length = chunk_lens[min(turn, len(chunk_lens) - 1)]
            end = min(start + length, len(self.tokens) - 1)
            self._pass(start, self.tokens[start:end])
            start, turn = end, turn + 1

    def request(self, draft_len: int) -> DraftRequest:
        """What the engine would ask for this row."""
        return DraftRequest(self.row, len(self.tokens) - 1, self.tokens[-1], draft_len, self.params)

    def verify(self, proposed: Sequence[int]) -> int:
        """One round over any proposals, a memory's or none too; returns how many it accepted."""
        start = len(self.tokens) - 1
        logits = self._pass(start, [self.tokens[-1], *proposed])
        self.verify_logits.append(logits)
        points = [ChoicePoint(self.params, start + 1 + i) for i in range(len(logits))]
        chosen = choose(logits, points)
        accepted = 0
        while accepted < len(proposed) and proposed[accepted] == chosen[accepted]:
            accepted += 1
        self.tokens.extend(chosen[: accepted + 1])
        self.accepted += accepted
        self.judged += min(accepted + 1, len(proposed))
        return accepted

    def _pass(self, start: int, ids: Sequence[int]) -> Tensor:
        bench = self.bench
        plan = bench.target.plan([Segment(self.row, start, tuple(ids))])
        hidden = bench.target.shallow(plan, bench.cache)
        bench.drafter.observe(hidden, plan)
        deep = bench.target.deep(hidden, plan, bench.cache)
        return bench.target.logits(deep)


def shallow_states(target: TargetModel, ids: Sequence[int]) -> Tensor:
    """h_k [T, H] of a whole text in one pass over a fresh cache."""
    cache = target.new_cache(target.exit_layer, 1, len(ids))
    plan = target.plan([Segment(0, 0, tuple(ids))])
    return target.shallow(plan, cache)


def one_shot_logits(
    bench: Bench, tensors: Mapping[str, Tensor] | None, ids: Sequence[int]
) -> Tensor:
    """The trainer's draft logits [T, V] at every position of a text, through PEFT."""
    module = lora.wrap(
        DraftModule(bench.branch), bench.branch.layout, torch.Generator().manual_seed(0)
    )
    if tensors is not None:
        lora.load_into(module, bench.branch.layout, tensors)
    hidden = shallow_states(bench.target, ids)[None]
    count = len(ids)
    select = torch.stack((torch.zeros(count, dtype=torch.long), torch.arange(count)), 1)
    with torch.no_grad():
        return lora.draft_logits(
            module, hidden, torch.arange(count)[None], torch.tensor([count]), select
        )


def target_hash(target: TargetModel) -> str:
    """SHA-256 over every plain and fused tensor that the target computes with."""
    digest = hashlib.sha256()
    tensors = [target.embedding, target.final_norm, target.head]
    for index in range(target.spec.num_layers):
        layer = target.layer(index)
        tensors += [matrix.weight for matrix in layer.matrices]
        tensors += [layer.input_norm.weight, layer.post_norm.weight]
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def random_prompt(seed: int, length: int, vocab: int) -> list[int]:
    """Uniform ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (length,), generator=generator).tolist()
