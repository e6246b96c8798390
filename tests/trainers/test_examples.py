"""What rows of files mean, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dvi.modeling.tokenizer import Tokenizer
from tests.rigs import make_model_folder
from trainers.examples import Example, Reading, RowRefused, examples_of, reading_of
from trainers.files import read_rows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    make_model_folder(folder)
    return Tokenizer.load(folder)


@pytest.fixture
def reading(tokenizer: Tokenizer) -> Reading:
    return reading_of(tokenizer, None, piece_len=8)


ASK = {"role": "user", "content": "the dog"}
ANSWER = {"role": "assistant", "content": "the fox"}


def shown(example: Example, tokenizer: Tokenizer) -> tuple[str, str | None]:
    answer = example.answer_ids
    return (
        tokenizer.decode(example.prompt_ids, skip_special_tokens=False),
        None if answer is None else tokenizer.decode(answer, skip_special_tokens=False),
    )


CHAT_PROMPT = "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"messages": [ASK]}, None),
        ({"messages": [ASK, ANSWER]}, "the fox<|im_end|>"),
        ({"prompt": "the dog"}, None),
        ({"prompt": "the dog", "completion": None}, None),
        ({"prompt": "the dog", "completion": "the fox"}, "the fox<|im_end|>"),
        ({"prompt": [ASK], "completion": [ANSWER]}, "the fox<|im_end|>"),
        ({"conversations": [{"from": "human", "value": "the dog"}]}, None),
        (
            {
                "conversations": [
                    {"from": "human", "value": "the dog"},
                    {"from": "gpt", "value": "the fox"},
                ]
            },
            "the fox<|im_end|>",
        ),
    ],
)
def test_chats_are_what_the_server_would_be_sent_and_answers_end_as_its_own(
    row: dict[str, object], answer: str | None, reading: Reading
) -> None:
    (example,) = examples_of(row, reading)
    assert shown(example, reading.tokenizer) == (CHAT_PROMPT, answer)


def test_a_later_turn_has_the_earlier_ones_in_its_prompt(reading: Reading) -> None:
    (example,) = examples_of({"messages": [ASK, ANSWER, ASK]}, reading)
    assert shown(example, reading.tokenizer) == (
        "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\nthe fox<|im_end|>\n"
        + CHAT_PROMPT,
        None,
    )


def test_a_prompt_can_be_the_text_itself(tokenizer: Tokenizer) -> None:
    reading = reading_of(tokenizer, "text", 8)
    (example,) = examples_of({"prompt": "the dog", "completion": " sleeps"}, reading)
    assert shown(example, tokenizer) == ("the dog", " sleeps<|endoftext|>")


def test_text_is_cut_in_pieces_that_together_are_the_text(reading: Reading) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 3
    examples = list(examples_of({"text": text}, reading))
    assert len(examples) > 2
    assert all(len(example.prompt_ids) == 1 for example in examples)
    assert all(1 <= len(example.answer_ids or ()) <= 7 for example in examples)
    ids = [i for example in examples for i in (*example.prompt_ids, *(example.answer_ids or ()))]
    assert text.startswith(reading.tokenizer.decode(ids, skip_special_tokens=False).strip())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "x"}, "no column of messages, conversations, prompt, text; it has question"),
        ({"messages": "hi"}, "no list of messages"),
        ({"messages": [{"content": "x"}]}, "without a role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "is list, not text"),
        ({"messages": [ANSWER]}, "without a message before it"),
        ({"prompt": 3}, "no list of messages"),
        ({"text": 3}, "is int, not text"),
    ],
)
def test_a_row_that_is_not_understood_is_refused_with_the_reason(
    row: dict[str, object], reason: str, reading: Reading
) -> None:
    with pytest.raises(RowRefused, match=reason):
        list(examples_of(row, reading))


def test_parquet_and_jsonl_and_a_folder_of_both_are_read_in_order(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "completion": "c"}, {"messages": [ASK]}]
    (tmp_path / "1.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    table = pyarrow.table({"text": ["d", "e"], "other": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "2.parquet")
    (tmp_path / "notes.md").write_text("not data")
    read = list(read_rows(tmp_path, None))
    kept = [{name: value for name, value in row.items() if value is not None} for row in read]
    assert kept == [*rows, {"text": "d", "other": 1}, {"text": "e", "other": 2}]
    assert len(list(read_rows(tmp_path, 4))) == 4


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("x.jsonl", '{"a": \n no', "cannot read"), ("x.csv", "a,b", "no file that ends in")],
)
def test_a_file_that_is_not_data_is_one_line(
    name: str, content: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=reason) as caught:
        list(read_rows(tmp_path / name, None))
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        list(read_rows(tmp_path / "none.jsonl", None))
