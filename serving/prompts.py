"""From a checked body to prompt token ids.

Owns the limits of a prompt; knows nothing of how a model tokenizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from serving.errors import ApiError, invalid
from serving.schema import ChatBody, CompletionBody, Message
from serving.service import ServedModel
from serving.tools.request import check_template
from serving.words import TEMPLATE_FAULTS

PromptIds = tuple[int, ...]
# What HF's apply_chat_template takes beside the template's own variables.
NO_TEMPLATE_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the engine reads it and, with ``echo``, as the answer repeats it."""

    ids: PromptIds
    echo: str = ""


def _require_fit(fewest: int, model: ServedModel, where: str) -> None:
    """Refuse a prompt of so many tokens or more: what cannot fit needs no closer look."""
    if fewest >= model.max_context_len:
        raise ApiError(
            400,
            f"This model's context is {model.max_context_len} tokens; the prompt has {fewest} or "
            "more.",
            param=where,
            code="context_length_exceeded",
        )


def _encode(text: str, model: ServedModel, where: str, *, add_special_tokens: bool) -> list[int]:
    """Ids of a text that may fit; one that cannot is not tokenized."""
    _require_fit(model.tokenizer.fewest_tokens(text), model, where)
    return model.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _checked(ids: list[int], model: ServedModel, where: str) -> PromptIds:
    if not ids:
        raise invalid(f"{where} holds no token.", where)
    worst = next((token for token in ids if not 0 <= token < model.num_token_ids), None)
    if worst is not None:
        raise invalid(f"{where}: token id {worst} is outside 0..{model.num_token_ids - 1}.", where)
    return tuple(ids)


def completion_prompts(body: CompletionBody, model: ServedModel) -> tuple[Prompt, ...]:
    """One prompt for a string or a list of ids, several for a list of either."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return (_text_prompt(body, prompt, model, "prompt"),)
    if isinstance(prompt[0], int):
        return (_id_prompt(body, prompt, model, "prompt"),)
    prompts: list[Prompt] = []
    for index, item in enumerate(prompt):
        where = f"prompt[{index}]"
        if isinstance(item, str):
            prompts.append(_text_prompt(body, item, model, where))
        elif isinstance(item, list):
            prompts.append(_id_prompt(body, item, model, where))
    return tuple(prompts)


def _text_prompt(body: CompletionBody, text: str, model: ServedModel, where: str) -> Prompt:
    add_special = body.add_special_tokens is not False
    ids = _encode(text, model, where, add_special_tokens=add_special)
    return Prompt(_checked(ids, model, where), text if body.echo else "")


def _id_prompt(body: CompletionBody, ids: list[int], model: ServedModel, where: str) -> Prompt:
    _require_fit(len(ids), model, where)
    checked = _checked(ids, model, where)
    skip = body.skip_special_tokens is not False
    echo = model.tokenizer.decode(checked, skip_special_tokens=skip) if body.echo else ""
    return Prompt(checked, echo)


def _template_message(message: Message) -> dict[str, Any]:
    # Templates of the supported families know no developer; OpenAI has it in the system's place.
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": message.text()}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [call.for_template() for call in message.tool_calls]
    return fields


def _check_template_arguments(body: ChatBody) -> None:
    for name in body.chat_template_kwargs or {}:
        if name in NO_TEMPLATE_VARIABLES:
            where = f"chat_template_kwargs.{name}"
            raise invalid(f"{where} is not supported: it is no variable of a template.", where)


def chat_prompt(body: ChatBody, model: ServedModel) -> Prompt:
    """The conversation through the model's own template."""
    if not model.tokenizer.has_chat_template:
        raise invalid(
            "messages: this model has no chat template, so it cannot hold a conversation. "
            "Send the text as prompt to /v1/completions, or serve an instruction-tuned model.",
            "messages",
            "no_chat_template",
        )
    _check_template_arguments(body)
    check_template(body, model.tools)
    go_on = body.continue_final_message is True
    try:
        text = model.tokenizer.render_chat(
            [_template_message(message) for message in body.messages],
            add_generation_prompt=not go_on and body.add_generation_prompt is not False,
            continue_final_message=go_on,
            template_kwargs=body.chat_template_kwargs,
            tools=[tool.for_template() for tool in body.offered_tools()],
        )
    except TEMPLATE_FAULTS as error:
        raise invalid(f"messages: the chat template refuses them: {error}", "messages") from error
    add_special = body.add_special_tokens is True
    ids = _encode(text, model, "messages", add_special_tokens=add_special)
    return Prompt(_checked(ids, model, "messages"))


def room_for(prompt: PromptIds, wanted: int | None, default: int | None, model: ServedModel) -> int:
    """Tokens the answer may have: as wanted, else the default, else the rest of the context.

    Raises context_length_exceeded when the prompt leaves no room for one token or for ``wanted``.
    """
    room = model.max_context_len - len(prompt)
    asked = max(wanted or 0, 1)
    if room < asked:
        raise ApiError(
            400,
            f"This model's context is {model.max_context_len} tokens; the prompt has {len(prompt)} "
            f"and the answer asks for {asked}.",
            param="messages" if default is None else "prompt",
            code="context_length_exceeded",
        )
    if wanted is not None:
        return wanted
    return room if default is None else min(room, default)
