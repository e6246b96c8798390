"""Structured output: which tokens may stand at the next position of an answer.

Owns compiled grammars and one matcher a session (llguidance); does not know logits or rounds.
Letters: V vocabulary of the grammar's tokenizer.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

_CACHED_GRAMMARS = 128
_SILENT = 0  # llguidance prints to stderr above this level, and a grammar is a user's content


class GrammarRefused(ValueError):
    """A grammar that cannot be compiled or allows no answer; the message is one line."""


class GrammarCompiler:
    """Grammars of one tokenizer, compiled once each. Any thread may call it.

    The tokenizer is made at first use, or by ``warm_up``: it takes about a second.
    """

    def __init__(self, make_tokenizer: Callable[[], LLTokenizer]) -> None:
        self._make_tokenizer = make_tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()  # newest use last
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Make the tokenizer now: later it would hold the interpreter for half a second."""
        self._get_tokenizer()

    def validate(self, grammar: str) -> None:
        """Compile ``grammar`` and remember it; raises GrammarRefused (a ValueError).

        May take a second: never on the decode thread, and not on an event loop either.
        """
        self._find(grammar)

    def open(self, grammar: str, end_ids: Sequence[int]) -> GrammarMatcher:
        """A matcher at the start of an answer; fast for a grammar that was validated before."""
        pristine = self._find(grammar)
        assert self._tokenizer is not None
        return GrammarMatcher(pristine, frozenset(end_ids) | set(self._tokenizer.eos_tokens))

    def _get_tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
            return self._tokenizer

    def _find(self, grammar: str) -> LLMatcher:
        tokenizer = self._get_tokenizer()
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known
        made = compile_grammar(tokenizer, grammar)  # outside the lock: others are not held up
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > _CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        return made


class GrammarMatcher:
    """The grammar's state after an answer's tokens. Decode thread only.

    Walks ahead over proposals and back; masks of one round are computed once, though drafting and
    verification both ask for them. End tokens are not of its business: it never takes one.
    """

    def __init__(self, pristine: LLMatcher, end_ids: frozenset[int]) -> None:
        self._pristine = pristine
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._matcher = pristine.deep_copy()
        self._committed: list[int] = []
        self._ahead: list[int] = []  # walked, not committed
        self._masks: dict[tuple[int, ...], NDArray[np.bool_] | None] = {}  # by tokens ahead

    def allowed(self) -> NDArray[np.bool_] | None:
        """[V] which tokens may come next, end tokens left out; read only.

        None where the grammar could not be followed (it grew too complex).
        """
        key = tuple(self._ahead)
        if key not in self._masks:
            self._masks[key] = self._compute_mask()
        return self._masks[key]

    def may_end(self) -> bool:
        """Whether the answer so far is a whole one."""
        accepting: bool = self._matcher.is_accepting()
        return accepting

    def advance(self, token_id: int) -> None:
        """Walk ahead over a token that ``allowed`` has."""
        self._ahead.append(token_id)
        self._matcher.consume_token(token_id)

    def settle(self) -> None:
        """Back to the committed tokens."""
        if not self._ahead:
            return
        num_ahead = len(self._ahead)
        self._ahead.clear()
        if self._matcher.is_error() or not self._matcher.rollback(num_ahead):
            self._rebuild()

    def commit(self, token_id: int) -> None:
        """The next token of the answer; what was walked ahead is forgotten but for its masks."""
        self.settle()
        self._masks = {
            key[1:]: mask
            for key, mask in self._masks.items()
            if key[:1] == (token_id,) and mask is not None
        }
        self._committed.append(token_id)
        self._matcher.consume_token(token_id)

    def _compute_mask(self) -> NDArray[np.bool_] | None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            return None
        mask = np.unpackbits(bits, bitorder="little").view(np.bool_)
        mask[self._end_ids[self._end_ids < mask.size]] = False
        return mask

    def _rebuild(self) -> None:
        """A matcher that ran into an error stays in it: replay the committed tokens."""
        self._matcher = self._pristine.deep_copy()
        self._matcher.consume_tokens(self._committed)


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start; raises GrammarRefused where there is none or nothing may begin."""
    matcher = LLMatcher(tokenizer, grammar, log_level=_SILENT)
    if not matcher.is_error():
        mask = GrammarMatcher(matcher, frozenset(tokenizer.eos_tokens)).allowed()
        if mask is not None and mask.any():
            return matcher
        if mask is not None:
            raise GrammarRefused("the grammar allows no answer but the empty one")
        matcher.compute_bitmask()
    lines = [line.strip() for line in matcher.get_error().splitlines() if line.strip()]
    raise GrammarRefused(f"the grammar was refused: {lines[0] if lines else 'too complex'}")


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """JSON that a schema admits."""
    grammar: str = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    return grammar


def regex_grammar(pattern: str) -> str:
    """Text that a regular expression matches as a whole."""
    grammar: str = LLMatcher.grammar_from_regex(pattern)
    return grammar


def choice_grammar(choices: Sequence[str]) -> str:
    """One of some strings; raises GrammarRefused where there is none."""
    if not choices:
        raise GrammarRefused("choice is empty; allowed: one string or more")
    alternatives = " | ".join(json.dumps(choice) for choice in choices)
    return lark_grammar(f"start: {alternatives}")


def lark_grammar(source: str) -> str:
    """Text by rules in llguidance's dialect of Lark, which has ``%json`` and token names."""
    grammar: str = LLMatcher.grammar_from_lark(source)
    return grammar
