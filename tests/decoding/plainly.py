"""Plain decoding the slow way: one whole forward a token, every rule dense and from scratch.

Owns the reference that speculation is compared with; shares nothing with the code under test but
the target's forward and the choice rule.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from llguidance import LLMatcher
from torch import Tensor

from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.sampling import ChoicePoint, choose
from dvi.types import DecodeRequest, SamplingParams
from tests.decoding.letters import END, letter_tokenizer


def raw_logits(target: TargetModel, tokens: list[int]) -> Tensor:
    """[len(tokens), V] raw logits of every position, no cache reused."""
    cache = target.new_cache(target.spec.num_layers, 1, len(tokens) + 8)
    with torch.inference_mode():
        plan = target.plan([Segment(0, 0, tuple(tokens))])
        hidden = target.deep(target.shallow(plan, cache), plan, cache)
        return target.logits(hidden).clone()


def processed(
    logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int]
) -> Tensor:
    """[V] after bias, vLLM's penalties and min_tokens, over whole-vocabulary counts."""
    z = logits.double().clone()
    for token_id, bias in params.logit_bias:
        z[token_id] += bias
    counts = torch.zeros_like(z)
    for token_id in output:
        counts[token_id] += 1
    seen = counts > 0
    seen[prompt] = True
    penalty = torch.where(seen, params.repetition_penalty, 1.0)
    z = torch.where(z > 0, z / penalty, z * penalty)
    z -= params.frequency_penalty * counts
    z -= params.presence_penalty * (counts > 0)
    if len(output) < params.min_tokens:
        ends = () if params.ignore_eos else params.end_token_ids
        z[[*ends, *params.stop_token_ids]] = -torch.inf
    return z


def allowed_by(grammar: str, output: list[int]) -> set[int]:
    """Ids that a fresh matcher allows after ``output``; END where the answer may stop."""
    matcher = LLMatcher(letter_tokenizer(), grammar)
    assert matcher.consume_tokens(output), matcher.get_error()
    bits = matcher.compute_bitmask()
    return {token_id for token_id in range(64) if bits[token_id // 8] >> (token_id % 8) & 1}


def next_logits(
    raw: Tensor, params: SamplingParams, prompt: list[int], output: list[int]
) -> Tensor | None:
    """[V] processed logits; None where a grammar is at its end.

    End tokens are no text: they stand where the grammar may stop and nowhere else.
    """
    z = processed(raw, params, prompt, output)
    if params.grammar is None:
        return z
    allowed = allowed_by(params.grammar, output)
    may_stop = END in allowed and not params.ignore_eos
    allowed -= {END, *params.end_token_ids}
    if not allowed:
        return None
    if may_stop:
        allowed |= set(params.end_token_ids)
    mask = torch.full_like(z, -torch.inf)
    mask[list(allowed)] = 0.0
    if (z + mask).max() == -torch.inf:  # a grammar wins against min_tokens
        z = processed(raw, replace(params, min_tokens=0), prompt, output)
    return z + mask


def plain_tokens(target: TargetModel, request: DecodeRequest) -> tuple[int, ...]:
    """Output ids up to an end token, a stop token, a finished grammar or max_tokens."""
    params = request.sampling
    prompt, output = list(request.prompt_ids), []
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else params.end_token_ids)}
    while len(output) < params.max_tokens:
        raw = raw_logits(target, prompt + output)[-1]
        z = next_logits(raw, params, prompt, output)
        if z is None:
            break
        output += choose(z[None].to(raw.dtype), [ChoicePoint(params, len(prompt + output))])
        if output[-1] in ends:
            break
    return tuple(output)
