"""Alignment: which hidden state predicts which token, shown with known ids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from dvi.types import Round, Source, Trace
from tests.trainers.world import greedy, make_trace
from trainers.batch import is_usable, make_batch, split_traces
from trainers.window import cut_window, neural_proposals

CPU = torch.device("cpu")
VOCAB = 64


def known_trace(prompt_len: int, num_tokens: int, first_output: int = 40) -> Trace:
    """Prompt 0, 1, 2 ...; outputs count from ``first_output``; row t's best id is output t."""
    output = range(first_output, first_output + num_tokens)
    logits = torch.zeros(num_tokens, VOCAB)
    logits[torch.arange(num_tokens), torch.tensor(output)] = 5.0
    rounds = [Round(Source.TARGET, 0, (), (), 0)] * num_tokens
    return make_trace("r", (range(prompt_len), output), greedy(num_tokens), logits, rounds)


def test_the_state_of_the_last_prompt_token_predicts_the_first_output_token() -> None:
    window = cut_window(known_trace(3, 4), max_seq_len=512)
    assert window.ids == (0, 1, 2, 40, 41, 42)  # all but the last token, which predicts nothing
    assert (window.first_index, window.first_row, window.num_trained) == (2, 0, 4)
    assert window.ids[window.first_index] == 2
    assert window.is_whole


def test_rows_of_the_loss_line_up_with_inputs_whatever_the_lengths() -> None:
    traces = [known_trace(3, 4, 40), known_trace(1, 2, 50), known_trace(6, 1, 60)]
    batch = make_batch(traces, 512, version=0, device=CPU)
    assert batch.num_positions == 4 + 2 + 1
    for p, (b, index) in enumerate(batch.select.tolist()):
        text = traces[b].prompt_ids + traces[b].output_ids
        assert batch.segments[b].ids[index] == text[index]
        assert int(batch.teacher.committed[p]) == text[index + 1]
        assert int(batch.teacher.top_ids[p, 0]) == text[index + 1]
    assert batch.lengths.tolist() == [6, 2, 6]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 5]] * 3


def test_a_long_trace_keeps_its_end() -> None:
    trace = known_trace(3, 8)  # inputs 0 1 2 40 .. 46
    window = cut_window(trace, max_seq_len=5)
    assert window.ids == (42, 43, 44, 45, 46)
    assert (window.first_index, window.first_row, window.num_trained) == (0, 3, 5)
    assert not window.is_whole
    batch = make_batch([trace], 5, version=0, device=CPU)
    assert batch.teacher.committed.tolist() == [43, 44, 45, 46, 47]
    assert batch.teacher.top_ids[:, 0].tolist() == [43, 44, 45, 46, 47]


def test_a_window_that_cuts_into_the_prompt_trains_every_output_token() -> None:
    window = cut_window(known_trace(6, 3), max_seq_len=4)
    assert window.ids == (4, 5, 40, 41)
    assert (window.first_index, window.first_row, window.num_trained) == (1, 0, 3)


def judged_trace() -> Trace:
    """Outputs 40 .. 45: a round of 2 accepted + bonus, a memory round, a reject at once."""
    rounds = (
        Round(Source.NEURAL, 4, (40, 41, 7), (-0.1, -0.2, -0.3), 2),
        Round(Source.MEMORY, 0, (43,), (), 1),
        Round(Source.NEURAL, 2, (9,), (-0.4,), 0),
    )
    return replace(known_trace(3, 6), rounds=rounds)


def test_judged_proposals_stand_at_the_token_they_were_a_guess_for() -> None:
    proposals = neural_proposals(judged_trace())
    assert [(p.row, p.token, p.is_accepted) for p in proposals] == [
        (0, 40, True),
        (1, 41, True),
        (2, 7, False),
        (5, 9, False),
    ]


def test_judged_rows_count_through_the_batch_and_lag_counts_versions() -> None:
    batch = make_batch([known_trace(2, 3), judged_trace()], 512, version=5, device=CPU)
    assert batch.judged.index.tolist() == [3, 4, 5, 8]
    assert batch.judged.token.tolist() == [40, 41, 7, 9]
    assert batch.judged.reward.tolist() == [1, 1, 0, 0]
    assert batch.judged.lag.tolist() == [1, 1, 1, 3]
    committed = batch.teacher.committed[batch.judged.index]
    assert ((batch.judged.token == committed) == batch.judged.reward.bool()).all()


def test_judged_rows_before_a_window_are_left_out() -> None:
    batch = make_batch([judged_trace()], 4, version=4, device=CPU)  # rows 2 .. 5 are trained
    assert batch.judged.index.tolist() == [0, 3]
    assert batch.judged.token.tolist() == [7, 9]


def test_groups_hold_every_trace_once_and_few_positions() -> None:
    traces = [known_trace(2, n) for n in (3, 3, 5, 1, 1)]
    groups = split_traces(traces, 512, max_traces=8, max_positions=6)
    assert [[len(t.output_ids) for t in group] for group in groups] == [[3, 3], [5, 1], [1]]
    groups = split_traces(traces, 512, max_traces=8, max_positions=2)
    assert [len(group) for group in groups] == [1, 1, 1, 2]
    groups = split_traces(traces, 512, max_traces=2, max_positions=99)
    assert [len(group) for group in groups] == [2, 2, 1]


def test_rows_of_another_vocabulary_or_without_content_are_not_usable() -> None:
    trace = known_trace(3, 4)
    assert is_usable(trace, VOCAB)
    assert not is_usable(trace, 43)  # 43 is an output id
    assert not is_usable(replace(trace, prompt_ids=()), VOCAB)
    assert not is_usable(replace(trace, logsumexp=np.full(4, np.nan, np.float32)), VOCAB)
    assert not is_usable(replace(trace, top_logits=trace.top_logits * np.nan), VOCAB)
    empty = replace(
        trace, output_ids=(), top_ids=trace.top_ids[:0], top_logits=trace.top_logits[:0]
    )
    assert not is_usable(empty, VOCAB)
