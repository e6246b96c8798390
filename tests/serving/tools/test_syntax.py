"""What a chat template knows of tools is found out, and the grammar of calls is its own form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from llguidance import LLMatcher, LLTokenizer

from dvi.modeling.tokenizer import Tokenizer
from serving.tools.grammar import calls_grammar
from serving.tools.reader import CallReader
from serving.tools.schema import Tool
from serving.tools.syntax import ToolForm, ToolSyntax, find_syntax
from tests.rigs import make_tokenizer_folder
from tests.serving.tools import templates
from tests.serving.tools.calling import CLOCK, WEATHER, read, tool, written

Make = Callable[..., Tokenizer]
MARKED = ToolSyntax(shows_tools=True, shows_calls=True, form=ToolForm.HERMES)
BARE = replace(MARKED, form=ToolForm.JSON, arguments_key="parameters")
TOOLS = [Tool.model_validate(WEATHER), Tool.model_validate(CLOCK)]
ROME = written("weather", city="Rome")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    def tokenizer(template: str, *, mark: bool | None = None) -> Tokenizer:
        """``mark``: the marks are tokens, special ones or not."""
        folder = tmp_path_factory.mktemp("tokenizer")
        make_tokenizer_folder(folder)
        hf = transformers.AutoTokenizer.from_pretrained(folder)
        hf.chat_template = template
        if mark is not None:
            marks = ("<tool_call>", "</tool_call>")
            added = [tokenizers.AddedToken(text, special=mark, normalized=False) for text in marks]
            hf.add_tokens(added, special_tokens=mark)
        hf.save_pretrained(folder)
        return Tokenizer.load(Path(folder))

    return tokenizer


def test_each_family_is_known_by_what_its_template_prints(make: Make) -> None:
    marked = find_syntax(make(templates.MARKED), "auto")
    assert marked == MARKED
    assert find_syntax(make(templates.BARE), "auto") == BARE
    assert find_syntax(make(templates.LISTED), "auto") == replace(BARE, arguments_key="arguments")
    assert find_syntax(make(templates.NO_TOOLS), "auto") == ToolSyntax()
    assert find_syntax(make(""), "auto") == ToolSyntax()


def test_the_config_can_force_a_form_or_leave_answers_alone(make: Make) -> None:
    tokenizer = make(templates.BARE)
    assert find_syntax(tokenizer, "hermes").form is ToolForm.HERMES
    assert find_syntax(make(templates.MARKED), "json").form is ToolForm.JSON
    assert find_syntax(tokenizer, "none") == replace(BARE, reads_auto=False)


def test_marks_that_are_tokens_are_known(make: Make) -> None:
    for special in (False, True):
        found = find_syntax(make(templates.MARKED, mark=special), "auto")
        assert found == replace(MARKED, marks_are_tokens=True, marks_are_special=special)


def accepts(tokenizer: Tokenizer, grammar: str) -> Callable[[str], bool]:
    """Whether a text is a whole answer by the grammar."""
    ours: LLTokenizer = tokenizer.for_grammars()

    def check(text: str) -> bool:
        matcher = LLMatcher(ours, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())

    return check


@pytest.mark.parametrize("mark", [None, False, True])
def test_the_grammar_admits_calls_of_offered_tools_and_nothing_else(
    make: Make, mark: bool | None
) -> None:
    tokenizer = make(templates.MARKED, mark=mark)
    syntax = find_syntax(tokenizer, "auto")
    good = accepts(tokenizer, calls_grammar(TOOLS, syntax, many=True))
    assert good(ROME)
    assert good(written("clock"))
    assert good(f"{ROME}\n{written('clock')}")
    assert not good("")
    assert not good("Rome")
    assert not good(f"Well. {ROME}")
    assert not good(written("weather"))  # city is required
    assert not good(written("weather", city="Rome", day=1))  # and the only one
    assert not good(written("clock", city="Rome"))
    assert not good(written("rm"))
    single = accepts(tokenizer, calls_grammar(TOOLS, syntax, many=False))
    assert single(ROME)
    assert not single(f"{ROME}\n{written('clock')}")


def test_the_bare_form_is_one_call_with_the_templates_own_key(make: Make) -> None:
    tokenizer = make(templates.BARE)
    good = accepts(tokenizer, calls_grammar(TOOLS, BARE, many=True))
    call = '{"name": "weather", "parameters": {"city": "Rome"}}'
    assert good(call)
    assert not good(call.replace("parameters", "arguments"))
    assert not good(call + call)
    assert not good(ROME)


def test_an_answer_by_a_schema_may_stand_in_the_place_of_calls(make: Make) -> None:
    tokenizer = make(templates.MARKED)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    good = accepts(tokenizer, calls_grammar(TOOLS, MARKED, many=True, answer=schema))
    assert good('{"ok": true}')
    assert good(ROME)
    assert not good("yes")


def test_references_inside_parameters_hold(make: Make) -> None:
    day = {"$defs": {"Day": {"enum": ["mon", "tue"]}}, "type": "object"}
    day |= {"properties": {"day": {"$ref": "#/$defs/Day"}}, "required": ["day"]}
    tools = [*TOOLS, Tool.model_validate(tool("plan", day))]
    good = accepts(make(templates.MARKED), calls_grammar(tools, MARKED, many=False))
    assert good(written("plan", day="tue"))
    assert not good(written("plan", day="sun"))


def test_what_the_grammar_admits_is_what_the_template_prints_and_the_reader_reads(
    make: Make,
) -> None:
    cases: list[tuple[str, ToolSyntax]] = [(templates.MARKED, MARKED), (templates.BARE, BARE)]
    arguments: dict[str, Any] = {"city": "Rome"}
    for template, syntax in cases:
        tokenizer = make(template)
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        turns = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        text = tokenizer.render_chat(turns, add_generation_prompt=False)
        text = text.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n").strip()
        assert accepts(tokenizer, calls_grammar(TOOLS, syntax, many=False))(text)
        reader = CallReader(frozenset({"weather"}), syntax.form, parallel=True)
        pieces = reader.push(text) + reader.finish()
        assert read(pieces) == ("", [("weather", json.dumps(arguments))])
