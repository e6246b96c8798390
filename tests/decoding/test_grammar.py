"""Structured output: masks at every position, walked and rolled back with the proposals."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest

from dvi.decoding import decode_batch
from dvi.decoding.grammar import (
    GrammarCompiler,
    GrammarMatcher,
    GrammarRefused,
    choice_grammar,
    json_schema_grammar,
    regex_grammar,
)
from dvi.drafting import DraftRequest
from dvi.types import DecodeRequest, FinishReason, Source, Verification
from tests.decoding.engines import (
    LIMITS,
    Received,
    ScriptedDrafter,
    make_request,
    make_rig,
    real_drafter,
)
from tests.decoding.letters import END, TEXTS, letter_tokenizer
from tests.decoding.plainly import plain_tokens
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

BOTH = list(Verification)
WIDE = replace(LIMITS, num_rows=8)


def requests_for(grammar: str, num: int = 8, **fields: object) -> list[DecodeRequest]:
    sampling = {"temperature": 1.0, "end_token_ids": (END,), "grammar": grammar, **fields}
    return [
        make_request(f"r{seed}", random_prompt(seed, 3, 64), seed=seed, **sampling)
        for seed in range(num)
    ]


def text_of(token_ids: tuple[int, ...]) -> str:
    return "".join(TEXTS[one] for one in token_ids if one != END)


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("pattern", ["(bb?c+)+d", "[b-g]+", "(bed|hedge)s?"])
def test_every_answer_matches_its_grammar_in_both_verification_modes(mode, pattern):
    """Case D5: a stopped answer matches as a whole, one at the limit goes on to match."""
    target = build_target("tiny-mix", seed=4)
    rig = make_rig(target, "block", draft_len=5, limits=WIDE, verification=mode)
    results = decode_batch(rig.engine, requests_for(regex_grammar(pattern), max_tokens=16))
    assert {result.finish_reason for result in results} & {FinishReason.STOP}
    for result in results:
        assert result.text == text_of(result.token_ids)
        if result.finish_reason is FinishReason.STOP:
            assert re.fullmatch(pattern, result.text)
        else:
            assert len(result.token_ids) == 16
    assert rig.engine.stats().drafter_faults == 0


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("draft_len", range(1, 9))
def test_a_grammar_that_ends_inside_a_block_ends_the_answer_there(draft_len, mode):
    """Case D6: more proposals than tokens are left; nothing is fed to a finished matcher."""
    target = build_target("tiny-ident", seed=1)
    rig = make_rig(target, "head", draft_len=draft_len, limits=WIDE, verification=mode)
    grammar = choice_grammar(["bbccc", "qqd"])
    for result in decode_batch(rig.engine, requests_for(grammar)):
        assert result.text in ("bbccc", "qqd")
        assert result.finish_reason is FinishReason.STOP
        assert len(result.token_ids) == result.counts.rounds + result.counts.accepted
        assert result.counts.acceptance_rate() in (None, 1.0)


def test_an_end_token_stands_only_where_the_grammar_may_stop_and_ends_the_answer():
    target = build_target("tiny-ident", seed=1)
    # The bias wants the end at once; the grammar wants three more letters first.
    requests = requests_for(regex_grammar("b+c+d+[a-z]*"), logit_bias=((END, 100.0),))
    for result in decode_batch(make_rig(target, "head", limits=WIDE).engine, requests):
        assert re.fullmatch("b+c+d+", result.text)
        assert result.token_ids[-1] == END
        assert result.token_ids.count(END) == 1
        assert result.finish_reason is FinishReason.STOP


def test_a_grammar_wins_against_min_tokens_and_ignored_end_tokens():
    target = build_target("tiny-mix", seed=1)
    grammar = choice_grammar(["bb", "cccdd"])
    for fields in ({"min_tokens": 15}, {"ignore_eos": True}, {"end_token_ids": ()}):
        for result in decode_batch(
            make_rig(target, "head", limits=WIDE).engine, requests_for(grammar, **fields)
        ):
            assert result.text in ("bb", "cccdd")
            assert result.finish_reason is FinishReason.STOP


def test_proposals_of_a_memory_are_cut_at_the_first_forbidden_token(caplog, capfd):
    """Case D8: a proposal that the grammar refuses is no error and no log line."""
    target = build_target("tiny-mix", seed=7)
    allowed = [i for i in range(1, 64) if set(TEXTS[i]) <= set("bcdefg")]
    banned = [i for i in range(1, 64) if i not in allowed]

    def script(request: DraftRequest) -> list[int]:
        turn = request.position % 4
        return [*allowed[:turn], banned[request.position % len(banned)], allowed[0], END]

    drafter = ScriptedDrafter(real_drafter(target, "head", WIDE), script)
    rig = make_rig(target, drafter, draft_len=6, limits=WIDE)
    requests = requests_for(regex_grammar("[b-g]+"), max_tokens=20)
    with caplog.at_level(logging.INFO):
        results = decode_batch(rig.engine, requests)
    assert [result.token_ids for result in results] == [plain_tokens(target, r) for r in requests]
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    for trace in rig.traces:
        proposed = [one for round_ in trace.rounds for one in round_.proposed_ids]
        assert not set(proposed) & set(banned)
    assert sum(result.counts.proposed for result in results) > 0


def test_a_forbidden_neural_proposal_is_an_ordinary_reject():
    target = build_target("tiny-mix", seed=7)
    drafter = ScriptedDrafter(
        real_drafter(target, "head", WIDE), lambda _: [1, 25, 25], Source.NEURAL
    )
    rig = make_rig(target, drafter, draft_len=3, limits=WIDE)
    requests = requests_for(regex_grammar("[b-g]+"), max_tokens=12)
    results = decode_batch(rig.engine, requests)
    assert [result.token_ids for result in results] == [plain_tokens(target, r) for r in requests]


@pytest.mark.parametrize("mode", BOTH)
def test_acceptance_under_a_grammar_is_not_below_acceptance_without(mode):
    target = build_target("tiny-mix", seed=3)
    rates = []
    for grammar in (None, regex_grammar("[a-m]+")):
        rig = make_rig(target, "head", draft_len=4, limits=WIDE, verification=mode)
        requests = [
            replace(one, sampling=replace(one.sampling, grammar=grammar))
            for one in requests_for(regex_grammar(".*"), num=24, max_tokens=30, ignore_eos=True)
        ]
        decode_batch(rig.engine, requests)
        counts = rig.engine.stats().counts
        assert counts.judged > 500
        rates.append(counts.acceptance_rate())
    free, masked = rates
    # Half the vocabulary is masked in draft and target alike, so they agree more often. Two
    # standard deviations of a share of 500 judged tokens are .045.
    assert masked > free - 0.045


def test_what_cannot_be_compiled_is_refused_before_it_waits():
    rig = make_rig(build_target("tiny-mix", seed=1), "none")
    for grammar in (regex_grammar("a("), '{"grammars": 3}', "no grammar", regex_grammar("")):
        with pytest.raises(GrammarRefused) as refusal:
            rig.engine.check_grammar(grammar)
        assert "\n" not in str(refusal.value)
        with pytest.raises(ValueError, match="grammar"):
            rig.engine.submit(requests_for(grammar)[0], Received())
    assert rig.engine.stats().queue_depth == 0
    rig.engine.check_grammar(None)
    with pytest.raises(GrammarRefused, match="choice"):
        choice_grammar([])


def test_an_engine_without_a_tokenizer_for_grammars_says_so():
    rig = make_rig(build_target("tiny-mix", seed=1), "none")
    bare = type(rig.engine)(replace(rig.engine.parts, grammars=None))
    with pytest.raises(ValueError, match="grammar"):
        bare.submit(requests_for(regex_grammar("b"))[0], Received())


def test_a_grammar_is_compiled_once():
    made = []

    def make_tokenizer():
        made.append(1)
        return letter_tokenizer()

    compiler = GrammarCompiler(make_tokenizer)
    assert made == []
    grammar = regex_grammar("[b-d]+")
    compiler.validate(grammar)
    first, second = compiler.open(grammar, (END,)), compiler.open(grammar, (END,))
    first.commit(TEXTS.index("bb"))
    assert made == [1]
    assert not second.may_end()
    assert first.may_end()


def test_a_matcher_that_walked_ahead_stands_where_it_stood():
    compiler = GrammarCompiler(letter_tokenizer)
    matcher = compiler.open(regex_grammar("b(cc)*[d-f]b*"), (END,))
    start = set(matcher.allowed().nonzero()[0].tolist())
    walked = []
    while matcher.allowed().any() and len(walked) < 4:
        walked.append(int(matcher.allowed().nonzero()[0][0]))
        matcher.advance(walked[-1])
    matcher.settle()
    assert set(matcher.allowed().nonzero()[0].tolist()) == start
    for token_id in walked:
        assert matcher.allowed()[token_id]
        matcher.commit(token_id)


def test_a_matcher_recovers_from_a_step_that_it_could_not_take():
    matcher = GrammarCompiler(letter_tokenizer).open(regex_grammar("[b-d]+"), (END,))
    good = int(matcher.allowed().nonzero()[0][0])
    matcher.commit(good)
    before = matcher.allowed().copy()
    matcher.advance(TEXTS.index("zz"))  # forbidden: llguidance stays in error
    assert matcher.allowed() is None
    matcher.settle()
    assert (matcher.allowed() == before).all()
    matcher.commit(good)
    assert matcher.allowed() is not None


class FragileMatcher(GrammarMatcher):
    """A matcher that gives up after three committed tokens."""

    def allowed(self):
        return None if len(self._committed) >= 3 else super().allowed()


class FragileCompiler(GrammarCompiler):
    """Opens fragile matchers."""

    def open(self, grammar, end_ids):
        return FragileMatcher(self._find(grammar), frozenset(end_ids))


def test_a_grammar_that_cannot_be_followed_fails_its_own_request_only():
    target = build_target("tiny-ident", seed=1)
    rig = make_rig(target, "head", draft_len=6, limits=WIDE)
    engine = type(rig.engine)(replace(rig.engine.parts, grammars=FragileCompiler(letter_tokenizer)))
    received = Received()
    fragile = requests_for(regex_grammar("[b-m]+"), num=1, max_tokens=20)[0]
    other = make_request("free", (1, 2, 3), max_tokens=20)
    engine.submit(fragile, received)
    engine.submit(other, received)
    while engine.step().worked:
        pass
    last = received.deltas["r0"][-1]
    assert (last.finish_reason, last.token_ids) == (FinishReason.FAILED, ())
    assert "grammar" in last.error
    shown = [one for delta in received.deltas["r0"] for one in delta.token_ids]
    assert len(shown) == 3
    assert received.reason("free") is FinishReason.LENGTH
    stats = engine.stats()
    assert stats.generated_tokens - stats.cancelled_tokens == 20


def test_a_trace_holds_what_decodes_its_answer_again():
    target = build_target("tiny-mix", seed=2)
    rig = make_rig(target, "block", draft_len=4, limits=WIDE)
    requests = requests_for(regex_grammar("[b-k]+"), max_tokens=14, frequency_penalty=0.7)
    decode_batch(rig.engine, requests)
    again = [
        DecodeRequest(trace.request_id, trace.prompt_ids, trace.sampling) for trace in rig.traces
    ]
    results = decode_batch(make_rig(target, "none", limits=WIDE).engine, again)
    assert [one.token_ids for one in results] == [trace.output_ids for trace in rig.traces]


def test_a_grammar_that_the_vocabulary_cannot_begin_is_refused():
    compiler = GrammarCompiler(letter_tokenizer)
    with pytest.raises(GrammarRefused, match="grammar"):
        compiler.validate(json_schema_grammar({"type": "object"}))  # this alphabet has no braces
