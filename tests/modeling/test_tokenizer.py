"""Ids to text without breaking a character, templates, end tokens, defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dvi.modeling.detokenizer import Detokenizer
from dvi.modeling.spec import ModelRefused, read_chat_template
from dvi.modeling.tokenizer import GenerationDefaults, Tokenizer
from tests.rigs import CORPUS, make_model_folder

END, START, CHAT_END = 0, 1, 2  # the rig's <|endoftext|>, <|im_start|>, <|im_end|>


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model_folder(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def sentencepiece_like() -> tokenizers.Tokenizer:
    """Words with a leading space mark, and byte tokens for the rest, as Llama 2 has."""
    vocab = {"<unk>": 0, "<s>": 1, "\u2581red": 2, "\u2581fox": 3, "x": 4}
    vocab |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True))
    fast.add_special_tokens(["<s>"])
    decoders = tokenizers.decoders
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return fast


def test_text_round_trips(tokenizer: Tokenizer) -> None:
    for text in CORPUS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_pieces_join_to_the_text_and_hold_no_broken_character(tokenizer: Tokenizer) -> None:
    text = "a \U0001f680\U0001f44d 東京 é\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    stream = tokenizer.detokenizer(skip_special_tokens=True)
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) == text
    assert stream.flush() == ""
    assert len(ids) > len(text)  # several characters came in pieces


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 329), max_size=40), skip=st.booleans())
def test_any_ids_join_to_the_decoded_whole(
    tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    stream = tokenizer.detokenizer(skip_special_tokens=skip)
    joined = "".join(stream.push(i) for i in ids) + stream.flush()
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    ids=st.lists(
        st.one_of(
            st.sampled_from([[2], [3], [4], [1]]),
            st.characters(min_codepoint=0xA0, exclude_categories=("Cs",)).map(
                lambda char: [5 + byte for byte in char.encode()]
            ),
        ),
        max_size=20,
    )
)
def test_byte_fallback_models_stream_valid_text_exactly(ids: list[list[int]]) -> None:
    flat = [i for group in ids for i in group]
    fast = sentencepiece_like()
    stream = Detokenizer(fast, skip_special_tokens=True)
    joined = "".join(stream.push(i) for i in flat) + stream.flush()
    assert joined == fast.decode(flat, skip_special_tokens=True)


def test_an_answer_that_ends_inside_a_character_flushes_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ok \U0001f9ff", add_special_tokens=False)[:-1]
    stream = tokenizer.detokenizer(skip_special_tokens=True)
    assert "".join(stream.push(i) for i in ids) == "ok "
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_special_tokens_show_only_when_asked(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("dog", add_special_tokens=False), CHAT_END]
    shown = tokenizer.detokenizer(skip_special_tokens=False)
    hidden = tokenizer.detokenizer(skip_special_tokens=True)
    assert "".join(shown.push(i) for i in ids) == "dog<|im_end|>"
    assert "".join(hidden.push(i) for i in ids) == "dog"


def test_token_bytes_are_the_raw_ones(tokenizer: Tokenizer) -> None:
    for text in (*CORPUS, "\U0001f9ff"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()
    assert tokenizer.token_bytes(START) == b"<|im_start|>"


def test_end_tokens_come_from_generation_config_and_tokenizer(folder: Path, tmp_path: Path) -> None:
    assert Tokenizer.load(folder).end_token_ids == (END, CHAT_END)
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    assert Tokenizer.load(tmp_path).end_token_ids == (CHAT_END,)


def test_generation_defaults_are_the_authors_or_neutral(folder: Path, tmp_path: Path) -> None:
    assert Tokenizer.load(folder).generation_defaults == GenerationDefaults(1.0, 1.0, 0, 0.0, 1.0)
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink()
    settings_of_author = {"temperature": 0.6, "top_p": 0.9, "top_k": None, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings_of_author))
    assert Tokenizer.load(tmp_path).generation_defaults == GenerationDefaults(0.6, 0.9)


def test_chat_template_renders_and_ends_in_the_assistants_turn(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "dog"}]
    ids = tokenizer.apply_chat_template(messages)
    text = "<|im_start|>user\ndog<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == START
    assert CHAT_END in ids
    closed = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert ids[: len(closed)] == closed
    assert len(closed) < len(ids)


def test_final_message_can_be_continued(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "dog"}, {"role": "assistant", "content": "The fox"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("assistant\nThe fox")
    with pytest.raises(ValueError, match="exclude each other"):
        tokenizer.apply_chat_template(messages, continue_final_message=True)


def test_template_complaints_are_value_errors(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").unlink()
    assert not Tokenizer.load(tmp_path).has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.load(tmp_path).apply_chat_template([{"role": "user", "content": "x"}])
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="roles must alternate"):
        Tokenizer.load(tmp_path).apply_chat_template([{"role": "user", "content": "x"}])


def test_a_template_of_ones_own_replaces_the_models(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text("{{ tools | length if tools }}<{{ messages[0].content }}>")
    tokenizer = Tokenizer.load(folder, str(mine))
    assert tokenizer.render_chat([{"role": "user", "content": "dog"}]) == "<dog>"
    assert tokenizer.render_chat([{"role": "user", "content": "dog"}], tools=[{}, {}]) == "2<dog>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "no UTF-8 text"),
        (b"{% for one in %}", "refused the messages"),
        (b"{{ raise_exception('no users here') }}", "no users here"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_at_load(
    folder: Path, tmp_path: Path, text: bytes | None, said: str
) -> None:
    mine = tmp_path / "mine.jinja"
    if text is not None:
        mine.write_bytes(text)
    with pytest.raises(ModelRefused, match=said) as caught:
        Tokenizer.load(folder, str(mine))
    assert str(mine) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folders_own_template_is_found_wherever_it_stands(tmp_path: Path) -> None:
    settings = tmp_path / "tokenizer_config.json"
    assert read_chat_template(tmp_path) == ""
    for entry in (
        "one",
        [{"name": "rag", "template": "two"}, {"name": "default", "template": "one"}],
    ):
        settings.write_text(json.dumps({"chat_template": entry}))
        assert read_chat_template(tmp_path) == "one"
    settings.write_text(json.dumps({"chat_template": None}))
    assert read_chat_template(tmp_path) == ""
    (tmp_path / "chat_template.jinja").write_text("three")
    assert read_chat_template(tmp_path) == "three"
