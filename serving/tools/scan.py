"""Where a JSON object or array ends, in text that arrives in pieces.

Owns brackets and strings; does not know values: what is between may be no JSON at all.
"""

from __future__ import annotations


class BracketScanner:
    """Reads text once; ``depth`` brackets are open when it begins."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._is_escaped = False

    def end(self, text: str, start: int = 0) -> int | None:
        """Index after the bracket that closes the outermost one; None: not in this text.

        ``text[start:]`` goes on where the text of the call before ended.
        """
        for index in range(start, len(text)):
            if self._closes(text[index]):
                return index + 1
        return None

    def _closes(self, char: str) -> bool:
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth == 0
        return False
