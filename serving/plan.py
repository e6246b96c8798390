"""From a checked body to decode requests: one a choice, and how the answer is to look.

Owns the defaults; knows neither the engine nor the wire.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from dvi.types import DecodeRequest, SamplingParams
from serving.errors import ApiError, invalid
from serving.parse import Parsed
from serving.prompts import PromptIds, chat_prompt, completion_prompts, room_for
from serving.schema import GREEDY_BELOW, ChatBody, CompletionBody, DviOptions, GenerationBody
from serving.service import ServedModel

COMPLETION_MAX_TOKENS = 16  # OpenAI's and vLLM's default of the old route
MAX_DOMAIN_LEN = 64
SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One HTTP request: decode request ``i`` is choice ``i`` of the answer."""

    request_id: str
    created_s: int
    is_chat: bool
    model: str
    system_fingerprint: str
    requests: tuple[DecodeRequest, ...]  # choices of prompt 0, of prompt 1, ...
    seed: int
    stream: bool = False
    include_usage: bool = False
    detail: bool = False
    return_token_ids: bool = False
    ignored_fields: tuple[str, ...] = ()
    is_duplicate: bool = False  # its id is being answered already: nothing is recorded

    def engine_ids(self) -> tuple[str, ...]:
        """Ids the engine knows the choices by; n choices of a prompt share one."""
        return tuple(dict.fromkeys(request.request_id for request in self.requests))

    def num_prompt_tokens(self) -> int:
        """Usage counts a prompt once, however many choices it gets."""
        return sum(
            len(request.prompt_ids)
            for request in self.requests
            if request.sampling.choice_index == 0
        )


def unrecorded(plan: Plan) -> Plan:
    """The same request under ids of its own, kept out of the store."""
    tag = os.urandom(6).hex()
    requests = tuple(
        replace(request, request_id=f"{request.request_id}#{tag}", log=False)
        for request in plan.requests
    )
    return replace(plan, requests=requests, is_duplicate=True)


def _check_model(body: GenerationBody, model: ServedModel) -> None:
    if body.model is not None and body.model != model.name:
        raise ApiError(
            404,
            f"The model {body.model!r} does not exist; this server has {model.name!r}.",
            param="model",
            code="model_not_found",
        )


def _options(body: GenerationBody, model: ServedModel) -> DviOptions:
    options = body.dvi or DviOptions()
    if options.max_draft_len is not None and options.max_draft_len > model.max_draft_len:
        raise invalid(
            f"dvi.max_draft_len must be in 0..{model.max_draft_len}, got {options.max_draft_len}.",
            "dvi.max_draft_len",
        )
    return options


def _domain(body: GenerationBody) -> str:
    domain = (body.metadata or {}).get("domain", "")
    if len(domain) > MAX_DOMAIN_LEN:
        raise invalid(
            f"metadata.domain is longer than {MAX_DOMAIN_LEN} characters.", "metadata.domain"
        )
    return domain


def _sampling(body: GenerationBody, model: ServedModel, seed: int) -> SamplingParams:
    """All but the limit and the choice index."""
    defaults = model.defaults
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_k = defaults.top_k if body.top_k is None else body.top_k
    for token in body.stop_token_ids or ():
        if not 0 <= token < model.num_token_ids:
            raise invalid(
                f"stop_token_ids: {token} is outside 0..{model.num_token_ids - 1}.",
                "stop_token_ids",
            )
    return SamplingParams(
        max_tokens=1,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=max(top_k, 0),
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        seed=seed,
        stop=body.stop_strings(),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        end_token_ids=tuple(model.tokenizer.end_token_ids),
        ignore_eos=body.ignore_eos is True,
        include_stop_str_in_output=body.include_stop_str_in_output is True,
        skip_special_tokens=body.skip_special_tokens is not False,
    )


def _prompts(body: CompletionBody | ChatBody, model: ServedModel) -> tuple[PromptIds, ...]:
    if isinstance(body, ChatBody):
        return (chat_prompt(body, model),)
    return completion_prompts(body, model)


def make_plan(parsed: Parsed, model: ServedModel, request_id: str, arrived_s: float) -> Plan:
    """Decode requests of one body. Raises ApiError; CPU-bound, so call it off the event loop."""
    body = parsed.body
    _check_model(body, model)
    options = _options(body, model)
    seed = int.from_bytes(os.urandom(8)) if body.seed is None else body.seed & SEED_MASK
    sampling = _sampling(body, model, seed)
    is_chat = isinstance(body, ChatBody)
    prompts = _prompts(body, model)
    num_choices = len(prompts) * (body.n or 1)
    if num_choices > model.max_choices:
        raise invalid(
            f"{num_choices} choices in one request; this server takes {model.max_choices}.",
            "prompt" if len(prompts) > 1 else "n",
        )
    log = model.keep_content and options.log and body.store is not False
    requests = []
    for index, prompt in enumerate(prompts):
        default = None if is_chat else COMPLETION_MAX_TOKENS
        limit = room_for(prompt, body.token_limit(), default, model)
        for choice in range(body.n or 1):
            requests.append(
                DecodeRequest(
                    # Several prompts are several requests to the engine and the store.
                    request_id=request_id if len(prompts) == 1 else f"{request_id}:{index}",
                    prompt_ids=prompt,
                    sampling=replace(sampling, max_tokens=limit, choice_index=choice),
                    speculation=options.speculation,
                    max_draft_len=options.max_draft_len,
                    log=log,
                    domain=_domain(body),
                    user_hash=model.hash_user(body.user),
                    arrived_s=arrived_s,
                )
            )
    return Plan(
        request_id=request_id,
        created_s=int(time.time()),
        is_chat=is_chat,
        model=model.name,
        system_fingerprint=model.system_fingerprint,
        requests=tuple(requests),
        seed=seed,
        stream=body.stream is True,
        include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
        detail=options.detail,
        return_token_ids=body.return_token_ids is True,
        ignored_fields=parsed.ignored_fields,
    )
