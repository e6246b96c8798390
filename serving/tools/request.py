"""From the tool fields of a chat body to a grammar and a way of reading the answer.

Owns the rules between tools, ``tool_choice`` and the fields that shape text, as 400s; knows
neither how calls are written nor how they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.errors import ApiError, invalid
from serving.schema import ChatBody
from serving.tools.grammar import calls_grammar
from serving.tools.reader import CallReading
from serving.tools.schema import ChosenTool, Tool
from serving.tools.syntax import ToolForm, ToolSyntax

MAX_REASON_LEN = 300  # of a complaint that quotes a client's own schema


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What the tools of one request change."""

    grammar: str | None = None  # in the place of what response_format asks for
    reading: CallReading | None = None  # None: the whole answer is text


def check_template(body: ChatBody, syntax: ToolSyntax) -> None:
    """The 400s of a model whose template cannot show what the body holds."""
    if body.offered_tools() and not syntax.shows_tools:
        raise invalid(
            "tools: this model's chat template does not know tools, so the model would never see "
            'them. Leave tools out or send tool_choice "none", or serve a model whose template '
            "prints tools.",
            "tools",
            "no_tool_template",
        )
    calls = [index for index, message in enumerate(body.messages) if message.tool_calls]
    if calls and not syntax.shows_calls:
        where = f"messages[{calls[0]}].tool_calls"
        raise invalid(
            f"{where}: this model's chat template does not print tool calls.",
            where,
            "no_tool_template",
        )


def plan_tools(body: ChatBody, syntax: ToolSyntax) -> ToolPlan:
    """Nothing where no tool is offered. Raises ApiError."""
    if not body.offered_tools():
        return ToolPlan()
    if body.structured_outputs is not None and body.structured_outputs.is_asked():
        raise invalid(
            'structured_outputs: excludes tools, unless tool_choice is "none".',
            "structured_outputs",
        )
    is_free = body.tool_choice in (None, "auto")
    if is_free and not syntax.reads_auto:
        return ToolPlan()
    tools = body.callable_tools()
    parallel = body.parallel_tool_calls is not False
    names = frozenset(tool.function.name for tool in tools)
    reading = CallReading(names, syntax.form, parallel)
    answer = _answer_schema(body)
    if is_free and answer is None:
        return ToolPlan(reading=reading)
    many = parallel and not isinstance(body.tool_choice, ChosenTool)
    grammar = calls_grammar(tools, syntax, many=many, answer=answer if is_free else None)
    return ToolPlan(grammar, reading)


def _answer_schema(body: ChatBody) -> Mapping[str, Any] | None:
    return None if body.response_format is None else body.response_format.schema_of_answer()


def keeps_special_tokens(syntax: ToolSyntax, plan: ToolPlan) -> bool:
    """Whether marks that are special tokens must have text, so that calls can be found."""
    is_marked = syntax.form is ToolForm.HERMES
    return plan.reading is not None and is_marked and syntax.marks_are_special


def tool_refused(
    tools: Sequence[Tool], syntax: ToolSyntax, check: Callable[[str], None]
) -> ApiError | None:
    """The 400 that names the tool whose parameters have no grammar; None: it is none of them."""
    for index, tool in enumerate(tools):
        try:
            check(calls_grammar([tool], syntax, many=False))
        except ValueError as own:
            where = f"tools[{index}].function.parameters"
            return invalid(f"{where}: {str(own)[:MAX_REASON_LEN]}", where)
    return None
