"""Text given out never shows a stop string, loses nothing else, and does not depend on tokens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dvi.decoding.text import StopText

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def expected_text(text: str, stops: list[str], include: bool) -> str:
    """Scan letter by letter: cut at the first letter that completes a stop string."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[:end] if include else text[: end - max(map(len, done))]
    return text


@settings(max_examples=400, derandomize=True)
@given(pieces=st.lists(st.text("ab", max_size=5), max_size=6), stops=STOPS, include=st.booleans())
def test_text_is_cut_where_a_letter_by_letter_scan_cuts_it(pieces, stops, include):
    stream = StopText(stops, include_stop=include)
    shown = ""
    for piece in pieces:
        stopped = stream.push(piece)
        shown += stream.take()
        assert expected_text("".join(pieces), stops, include).startswith(shown)
        if stopped:
            break
    if not stream.stopped:
        stream.finish()
        shown += stream.take()
    assert shown == expected_text("".join(pieces), stops, include)


@settings(max_examples=200, derandomize=True)
@given(text=LETTERS, stops=STOPS)
def test_no_more_is_held_back_than_could_still_become_a_stop_string(text, stops):
    stream = StopText(stops, include_stop=False)
    if stream.push(text):
        return
    held = text[len(stream.take()) :]
    assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_each_character_is_given_out_once():
    stream = StopText(["end"], include_stop=False)
    stream.push("been")
    assert (stream.take(), stream.take()) == ("be", "")
    stream.push("t")
    assert stream.take() == "ent"
