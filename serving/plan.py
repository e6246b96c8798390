"""From a checked body to decode requests: one a choice, and how the answer is to look.

Owns the defaults; knows neither the engine nor the wire.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from dvi.types import ID_PART_MARK, DecodeRequest, SamplingParams
from serving.errors import ApiError, invalid
from serving.parse import Parsed
from serving.prompts import Prompt, PromptIds, chat_prompt, completion_prompts, room_for
from serving.sampling import grammar_of, make_sampling
from serving.schema import ChatBody, CompletionBody, DviOptions, GenerationBody
from serving.service import ServedModel
from serving.tools.reader import CallReading
from serving.tools.request import ToolPlan, keeps_special_tokens, plan_tools
from serving.words import TokenTexts

COMPLETION_MAX_TOKENS = 16  # OpenAI's and vLLM's default of the old route
MAX_DOMAIN_LEN = 64
PROPOSED_CHARS_PER_TOKEN = 64  # of a prediction; few texts have longer tokens on average
SEED_MASK = (1 << 64) - 1
TENANT_TAG_LEN = 16  # hex digits of the tenant in an id


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and when."""

    request_id: str
    arrived_s: float  # monotonic
    api_key: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One HTTP request: decode request ``i`` is choice ``i`` of the answer."""

    request_id: str
    created_s: int
    is_chat: bool
    model: str
    system_fingerprint: str
    requests: tuple[DecodeRequest, ...]  # choices of prompt 0, of prompt 1, ...
    texts: TokenTexts
    seed: int
    echoes: tuple[str, ...] = ()  # the prompt of each choice, where the answer begins with it
    stream: bool = False
    include_usage: bool = False
    detail: bool = False
    return_token_ids: bool = False
    ignored_fields: tuple[str, ...] = ()
    reading: CallReading | None = None  # how calls are found in the answer; None: there are none
    is_duplicate: bool = False  # its id is being answered already: nothing is recorded

    def engine_ids(self) -> tuple[str, ...]:
        """Ids the engine knows the choices by; n choices of a prompt share one."""
        return tuple(dict.fromkeys(request.request_id for request in self.requests))

    @property
    def wants_logprobs(self) -> bool:
        """Whether every token comes with its log-probability."""
        return self.requests[0].sampling.logprobs is not None

    @property
    def has_prediction(self) -> bool:
        """Whether the client said what it expects to read."""
        return bool(self.requests[0].prediction_ids)

    def num_prompt_tokens(self) -> int:
        """Usage counts a prompt once, however many choices it gets."""
        return sum(
            len(request.prompt_ids)
            for request in self.requests
            if request.sampling.choice_index == 0
        )


def _part_id(*parts: str) -> str:
    return ID_PART_MARK.join(part for part in parts if part)


def unrecorded(plan: Plan) -> Plan:
    """The same request under ids of its own, kept out of the store."""
    tag = os.urandom(6).hex()
    requests = tuple(
        replace(request, request_id=_part_id(request.request_id, tag), log=False)
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


def _prompts(body: CompletionBody | ChatBody, model: ServedModel) -> tuple[Prompt, ...]:
    if isinstance(body, ChatBody):
        return (chat_prompt(body, model),)
    return completion_prompts(body, model)


def _prediction(body: CompletionBody | ChatBody, model: ServedModel) -> PromptIds:
    """Proposals only: what is longer than an answer can be is of no use."""
    if not isinstance(body, ChatBody) or body.prediction is None:
        return ()
    text = body.prediction.text()[: PROPOSED_CHARS_PER_TOKEN * model.max_context_len]
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    return tuple(ids[: model.max_context_len])


def _limit(body: CompletionBody | ChatBody, prompt: Prompt, model: ServedModel) -> int:
    default = None if isinstance(body, ChatBody) else COMPLETION_MAX_TOKENS
    limit = room_for(prompt.ids, body.token_limit(), default, model)
    if (body.min_tokens or 0) > limit:
        raise invalid(
            f"min_tokens: {body.min_tokens} is more than the {limit} tokens of the answer.",
            "min_tokens",
        )
    return limit


def _choices(
    parsed: Parsed, model: ServedModel, common: DecodeRequest
) -> tuple[tuple[DecodeRequest, ...], tuple[str, ...]]:
    """A request and an echo for every choice; ``common`` has what all choices share."""
    body = parsed.body
    prompts = _prompts(body, model)
    num_choices = len(prompts) * (body.n or 1)
    if num_choices > model.max_choices:
        raise invalid(
            f"{num_choices} choices in one request; this server takes {model.max_choices}.",
            "prompt" if len(prompts) > 1 else "n",
        )
    requests = []
    for index, prompt in enumerate(prompts):
        limit = _limit(body, prompt, model)
        # Several prompts are several requests to the engine and the store.
        request_id = _part_id(common.request_id, str(index) if len(prompts) > 1 else "")
        for choice in range(body.n or 1):
            sampling = replace(common.sampling, max_tokens=limit, choice_index=choice)
            requests.append(
                replace(common, request_id=request_id, prompt_ids=prompt.ids, sampling=sampling)
            )
    echoes = [prompt.echo for prompt in prompts for _ in range(body.n or 1)]
    is_echoed = isinstance(body, CompletionBody) and body.echo is True
    return tuple(requests), tuple(echoes) if is_echoed else ()


def _common(
    body: CompletionBody | ChatBody, model: ServedModel, caller: Caller, sampling: SamplingParams
) -> DecodeRequest:
    options = _options(body, model)
    limit_s = model.max_request_s
    tenant = model.tenant_of(caller.api_key)
    return DecodeRequest(
        request_id=_part_id(caller.request_id, tenant[:TENANT_TAG_LEN]),
        prompt_ids=(),
        sampling=sampling,
        speculation=options.speculation,
        max_draft_len=options.max_draft_len,
        log=model.keep_content and options.log and body.store is not False,
        domain=_domain(body),
        user_hash=model.hash_user(body.user),
        arrived_s=caller.arrived_s,
        deadline_s=None if limit_s is None else caller.arrived_s + limit_s,
        prediction_ids=_prediction(body, model),
        scope=model.scope_of(caller.api_key, body.user),
        tenant=tenant,
    )


def _sampling(
    body: CompletionBody | ChatBody, model: ServedModel, seed: int, tools: ToolPlan
) -> SamplingParams:
    grammar = grammar_of(body) if tools.grammar is None else tools.grammar
    sampling = make_sampling(body, model, seed, grammar)
    if keeps_special_tokens(model.tools, tools):
        return replace(sampling, skip_special_tokens=False)
    return sampling


def make_plan(parsed: Parsed, model: ServedModel, caller: Caller) -> Plan:
    """Decode requests of one body. Raises ApiError; CPU-bound, so call it off the event loop."""
    body = parsed.body
    _check_model(body, model)
    seed = int.from_bytes(os.urandom(8)) if body.seed is None else body.seed & SEED_MASK
    tools = plan_tools(body, model.tools) if isinstance(body, ChatBody) else ToolPlan()
    sampling = _sampling(body, model, seed, tools)
    requests, echoes = _choices(parsed, model, _common(body, model, caller, sampling))
    return Plan(
        request_id=caller.request_id,
        created_s=int(time.time()),
        is_chat=isinstance(body, ChatBody),
        model=model.name,
        system_fingerprint=model.system_fingerprint,
        requests=requests,
        texts=model.texts,
        seed=seed,
        echoes=echoes,
        stream=body.stream is True,
        include_usage=body.stream_options is not None and body.stream_options.include_usage is True,
        detail=(body.dvi or DviOptions()).detail,
        return_token_ids=body.return_token_ids is True,
        ignored_fields=parsed.ignored_fields,
        reading=tools.reading,
    )
