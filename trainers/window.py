"""Alignment of one trace: which hidden state predicts which committed token.

Owns the index arithmetic; knows neither tensors nor the model.
Letters: P prompt tokens, T output tokens; absolute position p holds token p of prompt + output.

The hidden state at position p predicts token p + 1. So output token t, at position P + t, is
predicted at position P - 1 + t, and row t of the trace holds the target's logits there. The last
token predicts nothing that the trace knows and is no input.
"""

from __future__ import annotations

from dataclasses import dataclass

from dvi.types import Source, Trace


@dataclass(frozen=True, slots=True)
class Window:
    """The inputs of one trace: at most ``max_seq_len`` tokens that end at the trace's end.

    A window that starts late counts its positions from zero: rotary attention only sees
    differences. ``ids[first_index + i]`` stands where row ``first_row + i`` was chosen.
    """

    ids: tuple[int, ...]
    first_index: int  # of the first trained position in ids
    first_row: int  # of the trace's arrays
    is_whole: bool  # nothing was cut off at the start

    @property
    def num_trained(self) -> int:
        """Trained positions: from ``first_index`` to the window's end."""
        return len(self.ids) - self.first_index


def cut_window(trace: Trace, max_seq_len: int) -> Window:
    """The window of a trace with at least one prompt and one output token."""
    inputs = (*trace.prompt_ids, *trace.output_ids[:-1])
    start = max(0, len(inputs) - max_seq_len)
    first_position = max(len(trace.prompt_ids) - 1, start)
    return Window(
        ids=inputs[start:],
        first_index=first_position - start,
        first_row=first_position - (len(trace.prompt_ids) - 1),
        is_whole=start == 0,
    )


@dataclass(frozen=True, slots=True)
class JudgedProposal:
    """One proposal whose fate says something: accepted, or the first reject of its round."""

    row: int  # of the trace: the output token that it was a guess for
    token: int
    is_accepted: bool
    logprob: float  # the draft's, raw, at T = 1, when it proposed
    adapter_version: int


def neural_proposals(trace: Trace) -> list[JudgedProposal]:
    """The judged proposals of the neural draft, in order of their row."""
    judged = []
    row = 0
    for cycle in trace.rounds:
        if cycle.source is Source.NEURAL:
            pairs = zip(cycle.proposed_ids, cycle.draft_logprobs, strict=True)
            judged += [
                JudgedProposal(
                    row + i, token, i < cycle.num_accepted, logprob, cycle.adapter_version
                )
                for i, (token, logprob) in enumerate(pairs)
            ]
        row += cycle.num_accepted + 1
    return judged
