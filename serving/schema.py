"""Request bodies as pydantic models: every field here is honoured, with its range.

A new field is one line here and one use in ``plan``; then its row leaves the table in ``fields``.
Knows nothing of tokens or of the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from serving.body import Body
from serving.fields import (
    CHAT_UNHONOURED,
    COMPLETION_UNHONOURED,
    MESSAGE_UNHONOURED,
    STREAM_UNHONOURED,
)
from serving.structured import ResponseFormat, StructuredOutputs
from serving.tools.schema import MAX_TOOLS, ChosenTool, Tool, ToolCall, ToolChoice, check_tools

MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20
MAX_BIASED_IDS = 1024
MAX_PROMPTS = 256
MAX_MESSAGES = 2048  # OpenAI's limit
# A temperature under this is greedy (vLLM's bound): z / T would leave float32 long before.
GREEDY_BELOW = 1e-5


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 16.0 is 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Outermost in an annotation: bounds inside it reach the JSON schema, bounds around it would not.
WHOLE = BeforeValidator(_whole)
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
# Ranges are checked where the model is known; only the schema says what no model takes.
TokenId = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
TokenIds = Annotated[list[TokenId], Field(json_schema_extra={"minItems": 1})]
TokenIdText = Annotated[str, Field(pattern="^[0-9]{1,9}$")]


class StreamOptions(Body):
    """OpenAI's stream_options."""

    unhonoured = STREAM_UNHONOURED

    include_usage: bool | None = None


class DviOptions(BaseModel):
    """Our extension; an unknown key is refused, since nobody else defines one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    speculation: bool = True
    max_draft_len: Annotated[int, Field(ge=0), WHOLE] | None = None
    log: bool = True
    detail: bool = False


class GenerationBody(Body):
    """Fields that both routes share."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[
            dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=MAX_BIASED_IDS, json_schema_extra={"additionalProperties": False}),
        ]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64), WHOLE] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), WHOLE] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=64)] | None = None
    stop_token_ids: Annotated[list[Annotated[TokenId, WHOLE]], Field(max_length=64)] | None = None
    min_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    dvi: DviOptions | None = None

    @model_validator(mode="after")
    def check_together(self) -> Self:
        """Rules over two fields; each message begins with the field to blame."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only allowed when stream is true")
        limits = (self.max_tokens, self.max_completion_tokens)
        if None not in limits and limits[0] != limits[1]:
            raise ValueError("max_tokens: differs from max_completion_tokens; send one of them")
        limit = self.token_limit()
        if limit is not None and (self.min_tokens or 0) > limit:
            raise ValueError("min_tokens: larger than max_tokens")
        return self

    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` in one form."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def token_limit(self) -> int | None:
        """The answer's length if the request sets it."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    unhonoured = COMPLETION_UNHONOURED

    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None

    @model_validator(mode="after")
    def check_limit(self) -> Self:
        """No answer at all is for those who want the prompt scored."""
        if self.token_limit() == 0 and not self.echo:
            raise ValueError("max_tokens: 0 is only allowed with echo")
        return self


class TextPart(Body):
    """The one kind of content part that this server reads."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One chat message; ``name`` and ``tool_call_id`` are there for templates that read them."""

    unhonoured = MESSAGE_UNHONOURED

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None

    def text(self) -> str:
        """The content as one string."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content)


class Prediction(Body):
    """OpenAI's prediction: text that the client expects to read back."""

    type: Literal["content"]
    content: str | list[TextPart]

    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    unhonoured = CHAT_UNHONOURED

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), WHOLE] | None = None
    prediction: Prediction | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def check_chat(self) -> Self:
        """Rules over two fields; each message begins with the field to blame."""
        if self.token_limit() == 0:
            raise ValueError("max_tokens: must be at least 1")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message: excludes add_generation_prompt")
        return self

    @model_validator(mode="after")
    def check_calls(self) -> Self:
        """Tools against the choice and the messages; each message begins with the field."""
        check_tools(self.tools or (), self.tool_choice)
        for index, message in enumerate(self.messages):
            if message.tool_calls and message.role != "assistant":
                raise ValueError(f"messages[{index}].tool_calls: only an assistant makes calls")
        return self

    def offered_tools(self) -> tuple[Tool, ...]:
        """Tools that the model is shown: none of them where it must not call one."""
        return () if self.tool_choice == "none" else tuple(self.tools or ())

    def callable_tools(self) -> tuple[Tool, ...]:
        """Those of them that the answer may call."""
        tools = self.offered_tools()
        if not isinstance(self.tool_choice, ChosenTool):
            return tools
        chosen = self.tool_choice.function.name
        return tuple(tool for tool in tools if tool.function.name == chosen)


class PromoteBody(BaseModel):
    """POST /admin/adapters/promote."""

    model_config = ConfigDict(extra="forbid", strict=True)

    version: Annotated[int, Field(ge=0), WHOLE]
