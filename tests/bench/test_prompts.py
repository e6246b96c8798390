"""Where the bench's prompts come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvi.bench.prompts import Item, groups_of, mixed, narrow_items, read_items
from dvi.modeling.tokenizer import Tokenizer
from dvi.traffic.stream import DOMAINS


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.load(model)


def test_narrow_items_are_the_requests_of_each_domain_from_the_first_asked_for(
    tokenizer: Tokenizer,
) -> None:
    whole, later = narrow_items(tokenizer, 0, 5), narrow_items(tokenizer, 3, 2)
    assert groups_of(later) == list(DOMAINS)
    assert later == [item for place, item in enumerate(whole) if place % 5 >= 3]


def test_mixed_takes_the_groups_in_turn_and_loses_nothing() -> None:
    items = [Item("a", (1,)), Item("a", (2,)), Item("b", (3,)), Item("c", (4,)), Item("c", (5,))]
    assert [item.ids for item in mixed(items)] == [(1,), (3,), (4,), (2,), (5,)]


def test_prompts_of_a_file_come_in_three_forms_by_category(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    hello = {"role": "user", "content": "hello"}
    rows = [
        {"category": "b", "turns": ["hello", "and then?"]},
        {"category": "a", "prompt": "hello"},
        {"category": "b", "messages": [hello]},
        {"category": "b", "turns": ["one too many"]},
        {"prompt": "hello"},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    items = read_items(path, tokenizer, per_group=2)
    assert [item.group for item in items] == ["b", "b", "a", "all"]
    assert items[0] == items[1]  # the first turn, by the chat template
    assert items[2].ids == tuple(tokenizer.encode("hello", add_special_tokens=True))
    assert len(items[0].ids) > len(items[2].ids)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "line 1 is not JSON"), ('{"text": "x"}', "needs"), ("\n", "holds no prompt")],
)
def test_a_prompt_file_of_another_form_is_refused_in_one_line(
    text: str, said: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_items(path, tokenizer, per_group=1)


def test_a_prompt_file_that_is_missing_is_said_in_one_line(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none\.jsonl"):
        read_items(tmp_path / "none.jsonl", tokenizer, per_group=1)
