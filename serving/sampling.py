"""From a checked body to the sampling parameters of its choices.

Owns the defaults (the model's, then vLLM's) and the ranges that depend on the model; knows neither
prompts nor the wire.
"""

from __future__ import annotations

from collections.abc import Iterable

from dvi.types import SamplingParams
from serving.errors import ApiError, invalid
from serving.schema import GREEDY_BELOW, ChatBody, CompletionBody, GenerationBody
from serving.service import ServedModel

MAX_REASON_LEN = 300  # of a complaint that quotes a client's own grammar


def _check_ids(ids: Iterable[int], name: str, model: ServedModel) -> None:
    for token in ids:
        if not 0 <= token < model.num_token_ids:
            raise invalid(f"{name}: {token} is outside 0..{model.num_token_ids - 1}.", name)


def _logit_bias(body: GenerationBody, model: ServedModel) -> tuple[tuple[int, float], ...]:
    biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    _check_ids(biases, "logit_bias", model)
    if len(biases) < len(body.logit_bias or {}):
        raise invalid("logit_bias: names a token id twice.", "logit_bias")
    return tuple(sorted(biases.items()))


def grammar_refused(body: GenerationBody, error: ValueError) -> ApiError:
    """The 400 of a grammar that cannot be followed, naming the field it came from."""
    name = "structured_outputs" if body.structured_outputs else "response_format"
    return invalid(f"{name}: {str(error)[:MAX_REASON_LEN]}", name)


def grammar_of(body: GenerationBody) -> str | None:
    """What the answer must look like, if the request says so. Raises the 400."""
    asked = body.response_format.grammar() if body.response_format is not None else None
    if body.structured_outputs is None:
        return asked
    try:
        structured = body.structured_outputs.grammar()
    except ValueError as error:  # json that is no JSON, too
        raise grammar_refused(body, error) from error
    if asked is not None and structured is not None:
        raise invalid(
            "structured_outputs: excludes a response_format other than text.", "structured_outputs"
        )
    return asked if structured is None else structured


def num_logprobs(body: CompletionBody | ChatBody) -> int | None:
    """Alternatives a token, None where no log-probability is wanted."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    return (body.top_logprobs or 0) if body.logprobs else None


def _num_prompt_logprobs(body: CompletionBody | ChatBody) -> int | None:
    if not isinstance(body, CompletionBody) or not body.echo:
        return None
    # Whoever wants no token at all has the prompt read, which is a pass for its log-probabilities.
    return 0 if body.logprobs is None and body.token_limit() == 0 else body.logprobs


def _chosen(value: float | None, default: float) -> float:
    return default if value is None else value


def make_sampling(
    body: CompletionBody | ChatBody, model: ServedModel, seed: int, grammar: str | None
) -> SamplingParams:
    """All but the limit and the choice index. Raises a 400."""
    _check_ids(body.stop_token_ids or (), "stop_token_ids", model)
    defaults = model.defaults
    temperature = _chosen(body.temperature, defaults.temperature)
    top_k = defaults.top_k if body.top_k is None else body.top_k
    return SamplingParams(
        max_tokens=1,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=max(top_k, 0),
        top_p=_chosen(body.top_p, defaults.top_p),
        min_p=_chosen(body.min_p, defaults.min_p),
        repetition_penalty=_chosen(body.repetition_penalty, defaults.repetition_penalty),
        seed=seed,
        stop=body.stop_strings(),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        end_token_ids=tuple(model.tokenizer.end_token_ids),
        ignore_eos=body.ignore_eos is True,
        include_stop_str_in_output=body.include_stop_str_in_output is True,
        skip_special_tokens=body.skip_special_tokens is not False,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body, model),
        min_tokens=body.min_tokens or 0,
        logprobs=num_logprobs(body),
        prompt_logprobs=_num_prompt_logprobs(body),
        grammar=grammar,
    )
