"""Calls are found in the text of an answer, wherever it is cut; what is no call stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tools.pieces import CallPiece, Piece
from serving.tools.reader import CallReader
from serving.tools.syntax import ToolForm
from tests.serving.tools.calling import read, written

HERMES, JSON = ToolForm.HERMES, ToolForm.JSON
NAMES = frozenset({"weather", "clock"})
TRICKY = {"city": '}"]<tool_call> \\', "deep": [1, {"x": [2]}], "word": "東京"}
CALL = written("weather", **TRICKY)
ARGUMENTS = json.dumps(TRICKY)
Calls = list[tuple[str, str]]

MARKED: dict[str, tuple[str, str, Calls]] = {
    "one call": (CALL, "", [("weather", ARGUMENTS)]),
    "text before": (f"Let me see. \n{CALL}\n", "Let me see.", [("weather", ARGUMENTS)]),
    "text after": (f"{CALL} done", "done", [("weather", ARGUMENTS)]),
    "two calls": (
        f"{CALL}\n{written('clock')}",
        "",
        [("weather", ARGUMENTS), ("clock", "{}")],
    ),
    "no space": ('<tool_call>{"name":"clock","arguments":{}}</tool_call>', "", [("clock", "{}")]),
    "list in marks": (
        '<tool_call>[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": '
        '{"city": "x"}}]</tool_call>',
        "",
        [("clock", "{}"), ("weather", '{"city": "x"}')],
    ),
    "other order": (
        '<tool_call>{"arguments": {"city": "x"}, "name": "weather"}</tool_call>',
        "",
        [("weather", '{"city": "x"}')],
    ),
    "surrogate alone": (
        '<tool_call>{"arguments": {"city": "\\ud800東"}, "name": "weather"}</tool_call>',
        "",
        [("weather", '{"city": "\\ud800東"}')],
    ),
    "name only": ('<tool_call>{"name": "clock"}</tool_call>', "", [("clock", "{}")]),
    "JSON in JSON": (
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"x\\"}"}</tool_call>',
        "",
        [("weather", '{"city": "x"}')],
    ),
    "more keys": (
        '<tool_call>{"name": "clock", "arguments": {}, "id": "}"}</tool_call>!',
        "!",
        [("clock", "{}")],
    ),
    "bracket forgotten": (
        '<tool_call>{"name": "clock", "arguments": {}</tool_call>',
        "",
        [("clock", "{}")],
    ),
    "mark forgotten": ('<tool_call>{"name": "clock", "arguments": {}}', "", [("clock", "{}")]),
    "not offered": (written("rm"), written("rm"), []),
    "no JSON": ("<tool_call>hm</tool_call>", "<tool_call>hm</tool_call>", []),
    "no call after all": (f"a <tool_call> b {CALL}", "a <tool_call> b", [("weather", ARGUMENTS)]),
    "cut in the mark": ("fine <tool_c", "fine <tool_c", []),
    "cut in the name": ('<tool_call>\n{"name": "wea', '<tool_call>\n{"name": "wea', []),
    "cut in the arguments": (CALL[:50], "", [("weather", ARGUMENTS[: 50 - CALL.index('{"city')])]),
    "text only": (" 1 < 2 \n", " 1 < 2 \n", []),
}
BARE: dict[str, tuple[str, str, Calls]] = {
    "parameters": (
        '{"name": "weather", "parameters": {"city": "x"}}',
        "",
        [("weather", '{"city": "x"}')],
    ),
    "arguments": (' {"name": "clock", "arguments": {}}\n', "", [("clock", "{}")]),
    "list": (
        '[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"city": "x"}}]',
        "",
        [("clock", "{}"), ("weather", '{"city": "x"}')],
    ),
    "semicolon": (
        '{"name": "clock", "parameters": {}}; {"name": "clock", "parameters": {}}',
        "",
        [("clock", "{}"), ("clock", "{}")],
    ),
    "type first": (
        '{"type": "function", "name": "weather", "parameters": {"city": "x"}}',
        "",
        [("weather", '{"city": "x"}')],
    ),
    "text after": ('{"name": "clock", "parameters": {}} ok', "ok", [("clock", "{}")]),
    "an answer in JSON": ('{"city": "Rome"}', '{"city": "Rome"}', []),
    "an answer that has a name": ('{"name": "clock"}', '{"name": "clock"}', []),
    "not offered": (
        '{"name": "rm", "parameters": {}}',
        '{"name": "rm", "parameters": {}}',
        [],
    ),
    "not at the start": ('So: {"name": "clock"}', 'So: {"name": "clock"}', []),
    "space only": (" \n", " \n", []),
}
SCRAPS = ["<tool_call>", "</tool_call>", "{}", "}", "\n", " ", "[", "]", ", ", '"', "\\", "text"]
SCRAPS += ['{"name": "clock", "arguments": ', '{"arguments": {}, "name": "weather"', CALL]
CASES = [(HERMES, case) for case in MARKED.values()] + [(JSON, case) for case in BARE.values()]


def pieces_of(parts: list[str], form: ToolForm, *, parallel: bool = True) -> list[Piece]:
    reader = CallReader(NAMES, form, parallel=parallel)
    pieces = [piece for part in parts for piece in reader.push(part)] + reader.finish()
    assert reader.num_calls == len(read(pieces)[1])
    return pieces


@pytest.mark.parametrize(
    ("form", "case"), CASES, ids=[f"marked {n}" for n in MARKED] + [f"bare {n}" for n in BARE]
)
def test_an_answer_reads_the_same_whole_and_letter_by_letter(
    form: ToolForm, case: tuple[str, str, Calls]
) -> None:
    text, content, calls = case
    assert read(pieces_of([text], form)) == (content, calls)
    assert read(pieces_of(list(text), form)) == (content, calls)
    assert read(pieces_of([text], form, parallel=False)) == (content, calls[:1])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([HERMES, JSON]),
    st.lists(
        st.sampled_from(SCRAPS),
        max_size=14,
    ),
    st.data(),
)
def test_cuts_never_change_what_is_read(
    form: ToolForm, parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(pieces_of([text], form))
    assert read(pieces_of(pieces, form)) == whole
    if not whole[1]:
        assert whole[0] == text


def test_arguments_stream_while_they_are_written() -> None:
    reader = CallReader(NAMES, HERMES, parallel=True)
    assert reader.push('<tool_call>\n{"name": "weather"') == []
    assert reader.push(', "arguments": {"ci') == [
        CallPiece(0, "", "weather"),
        CallPiece(0, '{"ci'),
    ]
    assert reader.push('ty": "R') == [CallPiece(0, 'ty": "R')]
    assert reader.push('ome"}}\n</tool') == [CallPiece(0, 'ome"}')]
    assert reader.push("_call>") == reader.finish() == []


def test_text_without_a_mark_is_not_held_back() -> None:
    reader = CallReader(NAMES, HERMES, parallel=True)
    assert read(reader.push("1 < 2"))[0] == "1 < 2"
    assert read(reader.push(" and <to"))[0] == " and"
    assert read(reader.push("day>"))[0] == " <today>"
