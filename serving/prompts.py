"""From a checked body to prompt token ids.

Owns the limits of a prompt; knows nothing of how a model tokenizes.
"""

from __future__ import annotations

from typing import Any

from serving.errors import ApiError, invalid
from serving.schema import ChatBody, CompletionBody, Message
from serving.service import ServedModel

PromptIds = tuple[int, ...]


def _checked(ids: list[int], model: ServedModel, where: str) -> PromptIds:
    if not ids:
        raise invalid(f"{where} holds no token.", where)
    worst = next((token for token in ids if not 0 <= token < model.num_token_ids), None)
    if worst is not None:
        raise invalid(f"{where}: token id {worst} is outside 0..{model.num_token_ids - 1}.", where)
    return tuple(ids)


def completion_prompts(body: CompletionBody, model: ServedModel) -> tuple[PromptIds, ...]:
    """One prompt for a string or a list of ids, several for a list of either."""
    prompt = body.prompt
    add_special = body.add_special_tokens is not False

    def encode(text: str, where: str) -> PromptIds:
        return _checked(model.tokenizer.encode(text, add_special_tokens=add_special), model, where)

    if isinstance(prompt, str):
        return (encode(prompt, "prompt"),)
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return (_checked(ids, model, "prompt"),)
    prompts: list[PromptIds] = []
    for index, item in enumerate(prompt):
        where = f"prompt[{index}]"
        if isinstance(item, str):
            prompts.append(encode(item, where))
        elif isinstance(item, list):
            prompts.append(_checked(item, model, where))
    return tuple(prompts)


def _template_message(message: Message) -> dict[str, Any]:
    # Templates of the supported families know no developer; OpenAI has it in the system's place.
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": message.text()}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def chat_prompt(body: ChatBody, model: ServedModel) -> PromptIds:
    """The conversation through the model's own template."""
    if "chat_template" in (body.chat_template_kwargs or {}):
        name = "chat_template_kwargs.chat_template"
        raise invalid(f"{name} is not supported: the template is the model's.", name)
    try:
        ids = model.tokenizer.apply_chat_template(
            [_template_message(message) for message in body.messages],
            add_generation_prompt=body.add_generation_prompt is not False,
            add_special_tokens=body.add_special_tokens is True,
            template_kwargs=body.chat_template_kwargs,
        )
    except ValueError as error:
        raise invalid(f"messages: the chat template refuses them: {error}", "messages") from error
    return _checked(ids, model, "messages")


def room_for(prompt: PromptIds, wanted: int | None, default: int | None, model: ServedModel) -> int:
    """Tokens the answer may have: as wanted, else the default, else the rest of the context.

    Raises context_length_exceeded when the prompt leaves no room for one token or for ``wanted``.
    """
    room = model.max_context_len - len(prompt)
    asked = wanted if wanted is not None else 1
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
