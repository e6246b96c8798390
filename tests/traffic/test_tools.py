"""An agent's questions, and a template that shows functions to a model that was taught none."""

from __future__ import annotations

import pytest

from dvi.modeling.tokenizer import Tokenizer
from dvi.traffic.tools import FUNCTIONS, make_tool_stream, with_tools
from serving.tools.syntax import ToolForm, find_syntax
from tests.rigs import CHAT_TEMPLATE, make_model_folder

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """The rig's tokenizer with its own template, and with tools in front of it."""
    folder = tmp_path_factory.mktemp("model")
    make_model_folder(folder)
    template = with_tools(CHAT_TEMPLATE)
    assert template is not None
    path = folder / "tools.jinja"
    path.write_text(template)
    return Tokenizer.load(folder), Tokenizer.load(folder, str(path))


def test_chats_without_tools_read_as_before(pair: tuple[Tokenizer, Tokenizer]) -> None:
    own, tools = pair
    assert tools.render_chat(CHAT) == own.render_chat(CHAT)


def test_the_server_finds_out_how_calls_are_written(pair: tuple[Tokenizer, Tokenizer]) -> None:
    own, tools = pair
    assert not find_syntax(own, "auto").shows_tools
    syntax = find_syntax(tools, "auto")
    assert syntax.shows_tools
    assert syntax.shows_calls
    assert (syntax.form, syntax.arguments_key) == (ToolForm.HERMES, "arguments")


def test_every_function_and_the_question_are_shown(pair: tuple[Tokenizer, Tokenizer]) -> None:
    _, tools = pair
    text = tools.render_chat(CHAT, tools=FUNCTIONS)
    assert all(one["function"]["name"] in text for one in FUNCTIONS)
    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" in text


@pytest.mark.parametrize("template", ["{{ tools }}<|im_start|>", "[INST] {{ messages }}", ""])
def test_a_template_that_shows_tools_or_is_no_chatml_is_left_alone(template: str) -> None:
    assert with_tools(template) is None


def test_questions_are_a_function_of_the_seed() -> None:
    assert make_tool_stream(9, 1) == make_tool_stream(12, 1)[:9]
    assert make_tool_stream(9, 1) != make_tool_stream(9, 2)
