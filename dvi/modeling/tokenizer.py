"""Text to ids and back, chat templates, end tokens and generation defaults of one model.

Owns what the model's own files say about text; does not know requests or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from llguidance import LLTokenizer

from dvi.modeling.detokenizer import Detokenizer
from dvi.modeling.grammar_tokens import grammar_tokenizer
from dvi.modeling.hf import count_ids, read_tokenizer
from dvi.modeling.spec import ModelRefused
from dvi.modeling.token_bound import longest_token_bytes


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling that generation_config.json asks for where a request says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class Tokenizer:
    """The tokenizer of one model folder. Read-only; any thread may call it."""

    def __init__(self, hf: Any, settings: Mapping[str, Any], end_ids: Sequence[int]) -> None:
        self._hf = hf
        self._fast = hf.backend_tokenizer
        self._settings = settings
        self.num_ids = count_ids(hf)
        self.end_token_ids = tuple(end_ids)
        self.special_ids = frozenset(hf.all_special_ids)
        self._byte_of = _byte_alphabet()
        self._longest_token_bytes = longest_token_bytes(self._fast)

    @classmethod
    def load(cls, path: Path, chat_template: str | None = None) -> Tokenizer:
        """Read a local folder; ``chat_template`` is a file to use instead of the folder's own.

        Raises ModelRefused where there is no fast tokenizer, or with the template's own complaint
        about one message of a user.
        """
        hf = read_tokenizer(path)
        if chat_template is not None:
            hf.chat_template = _read_template(Path(chat_template))
        settings = _read_optional(path / "generation_config.json")
        ends = _as_ids(settings.get("eos_token_id"))
        if not ends:
            ends = _as_ids(_read_optional(path / "config.json").get("eos_token_id"))
        tokenizer = cls(hf, settings, sorted({*ends, *_as_ids(hf.eos_token_id)}))
        if chat_template is not None:
            try:
                tokenizer.render_chat([{"role": "user", "content": "Hello."}])
            except ValueError as error:
                raise ModelRefused(f"model.chat_template={chat_template}: {error}") from error
        return tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether chat requests can be rendered."""
        return bool(self._hf.chat_template)

    @property
    def generation_defaults(self) -> GenerationDefaults:
        """Defaults of the model's author; absent or null entries are neutral."""
        known = {name: self._settings.get(name) for name in GenerationDefaults.__slots__}
        return GenerationDefaults(
            **{name: value for name, value in known.items() if value is not None}
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of ``text``; special tokens written in it are recognised.

        A batch of one, because only batches run without the interpreter's lock: a megabyte takes
        half a second, in which no other thread could decode.
        """
        batch = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that ``text`` has at least, at no cost; 0 where none is known."""
        if self._longest_token_bytes is None:
            return 0
        return -(-len(text.encode()) // self._longest_token_bytes)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ``ids``; incomplete characters become U+FFFD."""
        text: str = self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of the rendered messages; ``render_chat`` says what is raised."""
        text = self.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )
        return self.encode(text, add_special_tokens=add_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The messages as the model reads them; ValueError with the template's own complaint.

        ``tools`` are OpenAI's objects; a template that knows none leaves them out in silence.
        """
        if not self.has_chat_template:
            raise ValueError("this model has no chat template; use /v1/completions")
        if add_generation_prompt and continue_final_message:
            raise ValueError("add_generation_prompt and continue_final_message exclude each other")
        try:
            text: str = self._hf.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=[dict(tool) for tool in tools] or None,
                **(template_kwargs or {}),
            )
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template refused the messages: {error}") from error
        return text

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A fresh incremental decoder for one answer."""
        return Detokenizer(self._fast, skip_special_tokens=skip_special_tokens)

    def for_grammars(self) -> LLTokenizer:
        """This tokenizer for ``dvi.decoding.grammar``; takes about a second, so keep it."""
        return grammar_tokenizer(self._fast, self.end_token_ids)

    def token_text(self, token_id: int) -> str:
        """One token by itself, special tokens as written."""
        return self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, also where they are part of a character."""
        text = self.token_text(token_id)
        if "\ufffd" not in text:
            return text.encode()
        piece = self._fast.id_to_token(token_id) or ""
        if len(piece) == 6 and piece.startswith("<0x"):  # byte token of a sentencepiece model
            return bytes([int(piece[3:5], 16)])
        if all(char in self._byte_of for char in piece):  # byte-level BPE
            return bytes(self._byte_of[char] for char in piece)
        return text.encode()


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ModelRefused(f"model.chat_template={path} cannot be read: {reason}") from error


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-in of each byte (GPT-2): printable bytes are themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(byte): byte for byte in printable}
    return stand_ins | {chr(256 + index): byte for index, byte in enumerate(others)}


def _as_ids(value: object) -> list[int]:
    if value is None:
        return []
    return [int(i) for i in value] if isinstance(value, list) else [int(str(value))]


def _read_optional(path: Path) -> dict[str, Any]:
    """The JSON object at ``path``, empty if there is no such file."""
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
