"""Events become outputs: deltas add up to the whole, ends are told once, text stops where it must."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine import toys
from tests.engine.fakes import entry

from headrace.engine.detokenize import StopText, TokenTexts
from headrace.engine.output import RequestState, finish_vector
from headrace.engine.processor import OutputProcessor
from headrace.words.outputs import Finish, FinishReason, Move
from headrace.words.params import Pooling, Request, Sampling
from headrace.words.plan import TokenEvent

BYTES = TokenTexts(toys.bytewise())
EOS_END = Finish(FinishReason.STOPPED)
LENGTH = Finish(FinishReason.LENGTH_CAPPED, None, "max_tokens reached")


def state(n=1, texts=BYTES, prompt=b"hi", **sampling) -> RequestState:
    request = Request(
        7, "client", tuple(prompt), sampling=Sampling(**sampling), n=n, seed=5, prompt="hi", arrival_s=10.0
    )
    return RequestState(request, texts, enqueued_s=10.5)


def event(ids=b"", finish=None, choice=0, time_s=12.0, **fields) -> TokenEvent:
    return TokenEvent(7, choice, time_s, tuple(ids), finish=finish, **fields)


def play(request: RequestState, events: list[TokenEvent], delta=True) -> list:
    outputs = []
    for each in events:
        request.take(each)
        outputs.append(request.output(delta))
    return outputs


def test_cumulative_outputs_grow_and_the_last_one_is_finished():
    outputs = play(state(), [event(b"a"), event(b"bc"), event(b"d", LENGTH)], delta=False)
    assert [o.outputs[0].text for o in outputs] == ["a", "abc", "abcd"]
    assert [o.finished for o in outputs] == [False, False, True]
    assert outputs[-1].outputs[0].finish_reason == "length" and outputs[0].outputs[0].finish_reason is None
    assert (outputs[-1].request_id, outputs[-1].prompt, outputs[-1].prompt_token_ids) == ("client", "hi", [*b"hi"])
    assert outputs[-1].outputs[0].seed == 5


@pytest.mark.covers("D35")
def test_a_delta_is_a_list_of_tokens():
    outputs = play(state(), [event(b"abc"), event(b"d", LENGTH)])
    assert [o.outputs[0].token_ids for o in outputs] == [[*b"abc"], [*b"d"]]
    assert [o.outputs[0].text for o in outputs] == ["abc", "d"]


def test_tokens_that_waited_are_told_as_one_delta():
    request = state()
    request.take(event(b"a"))
    request.take(event(b"b"))
    assert request.output(delta=True).outputs[0].token_ids == [*b"ab"]
    request.take(event(b"c", LENGTH))
    assert request.output(delta=True).outputs[0].text == "c"


@pytest.mark.covers("E2")
def test_the_stop_tokens_text_is_not_told_but_its_id_stays():
    for finish in (EOS_END, Finish(FinishReason.STOPPED, 99)):
        whole = play(state(), [event(b"ab"), event(b"c", finish)], delta=False)[-1].outputs[0]
        assert (whole.text, whole.token_ids) == ("ab", [*b"abc"])
        kept = play(state(include_stop_str_in_output=True), [event(b"ab"), event(b"c", finish)])
        assert "".join(o.outputs[0].text for o in kept) == "abc"


@pytest.mark.covers("D25", "E3")
@pytest.mark.parametrize(("includes", "text"), [(False, "say "), (True, "say END")])
def test_a_stop_string_cuts_the_text_wherever_it_began(includes, text):
    tokens = [toys.bytewise().encode(word) for word in ("say", " E", "ND", "!")]
    finish = Finish(FinishReason.STOPPED, "END")
    events = [event(tokens[0]), event(tokens[1]), event(tokens[2], finish)]
    outputs = play(state(stop=("END",), include_stop_str_in_output=includes), events)
    assert "".join(o.outputs[0].text for o in outputs) == text
    assert outputs[-1].outputs[0].stop_reason == "END"
    assert play(state(stop=("END",), include_stop_str_in_output=includes), events, False)[-1].outputs[0].text == text


def test_text_behind_the_stop_string_in_its_own_token_is_dropped():
    token = [toys.bytewise().backend.token_to_id("END")]
    for stop, text in (("N", "E"), ("E", "")):
        outputs = play(state(stop=(stop,)), [event(token, Finish(FinishReason.STOPPED, stop))])
        assert outputs[0].outputs[0].text == text


@pytest.mark.covers("E3")
def test_text_is_held_back_only_while_it_may_begin_a_stop_string():
    outputs = play(
        state(stop=("abc",)), [event(b"xa"), event(b"b"), event(b"a"), event(b"b"), event(b"x"), event(b"a", LENGTH)]
    )
    assert [o.outputs[0].text for o in outputs] == ["x", "", "ab", "", "abx", "a"]


def test_a_stop_string_before_min_tokens_is_text():
    outputs = play(state(stop=("ab",)), [event(b"ab"), event(b"ab", Finish(FinishReason.STOPPED, "ab"))])
    assert [o.outputs[0].text for o in outputs] == ["ab", ""]


@pytest.mark.covers("E4")
def test_half_a_character_is_flushed_at_the_end():
    outputs = play(state(), [event("😀".encode()[:2]), event("😀".encode()[2:3], LENGTH)])
    assert [o.outputs[0].text for o in outputs] == ["", "\ufffd"]


TEXTS = {make.__name__: TokenTexts(make()) for make in (toys.bytewise, toys.fallback, toys.metaspace)}


@pytest.mark.covers("E3", "E4", "I17")
@pytest.mark.parametrize("name", TEXTS)
def test_deltas_add_up_to_the_final_text_and_that_is_the_tokenizers_cut_at_the_stop(name):
    texts = TEXTS[name]
    size = texts.tokenizer.vocab_size

    @settings(max_examples=150)
    @given(
        st.lists(st.integers(0, size), min_size=1, max_size=20),
        st.lists(st.text("aENé日 ", min_size=1, max_size=3), max_size=3),
        st.booleans(),
        st.data(),
    )
    def check(ids, stops, includes, data):
        ids, finish, expected = run_to_the_end(texts, ids, tuple(stops), includes)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(ids) - 1), max_size=6)))
        events, before = [], 0
        for cut in cuts:
            events.append(event(ids[before:cut]))
            before = cut
        events.append(event(ids[before:], finish))
        options = {"stop": tuple(stops), "include_stop_str_in_output": includes, "texts": texts}
        streamed = play(state(**options), events)
        final = state(**options)
        for each in events:
            final.take(each)
        assert "".join(o.outputs[0].text for o in streamed) == final.output().outputs[0].text == expected

    check()


def run_to_the_end(texts: TokenTexts, ids: list[int], stops: tuple[str, ...], includes: bool):
    """The ids up to the one that completes a stop string, the end, and the text by the plainest means."""
    matcher = StopText(texts, stops)
    for count, token_id in enumerate(ids, start=1):
        if (stop := matcher.push(token_id, active=True)) is not None:
            text = texts.tokenizer.decode(ids[:count])
            ends = [(text.find(s) + len(s), i, s) for i, s in enumerate(stops) if s in text]
            end, _, first = min(ends)
            assert first == stop
            return ids[:count], Finish(FinishReason.STOPPED, stop), text[: end if includes else end - len(first)]
    return ids, LENGTH, texts.tokenizer.decode(ids)


@pytest.mark.covers("E7")
def test_logprobs_have_the_token_first_then_the_most_likely_each_with_rank_text_and_bytes():
    logprobs = (entry(b"h", 98, 2),)
    out = play(state(logprobs=2), [event(b"b", LENGTH, logprobs=logprobs)])[0].outputs[0]
    (position,) = out.logprobs
    others = logprobs[0].token_ids[1:]
    assert list(position) == [98, *others]
    assert (position[98].rank, position[98].decoded_token, position[98].bytes) == (logprobs[0].rank, "b", b"b")
    assert [position[i].rank for i in others] == [1, 2]
    assert out.cumulative_logprob == position[98].logprob == logprobs[0].logprobs[0]


def test_logprobs_0_gives_the_token_alone_and_none_gives_none():
    logprobs = (entry(b"h", 98, 0),)
    assert len(play(state(logprobs=0), [event(b"b", LENGTH, logprobs=logprobs)])[0].outputs[0].logprobs[0]) == 1
    plain = play(state(), [event(b"b", LENGTH)])[0].outputs[0]
    assert plain.logprobs is None and plain.cumulative_logprob is None and plain.sum_smaller_probs is None


def test_the_true_bytes_of_half_a_character_are_told():
    half = "é".encode()[0]
    out = play(state(logprobs=0), [event([half], LENGTH, logprobs=(entry(b"", half, 0),))])[0].outputs[0]
    assert out.logprobs[0][half].bytes == b"\xc3" and out.logprobs[0][half].decoded_token == "\ufffd"


def test_the_cumulative_logprob_is_the_sum_so_far_in_deltas_too():
    entries = [entry(b"h", 98, 1), entry(b"hb", 99, 1)]
    outputs = play(state(logprobs=1), [event(b"b", logprobs=entries[:1]), event(b"c", LENGTH, logprobs=entries[1:])])
    sums = [entries[0].logprobs[0], entries[0].logprobs[0] + entries[1].logprobs[0]]
    assert [o.outputs[0].cumulative_logprob for o in outputs] == sums
    assert [len(o.outputs[0].logprobs) for o in outputs] == [1, 1]


def test_what_is_asked_per_token_is_told_per_token():
    logprobs = (entry(b"h", 98, 0), entry(b"hb", 99, 0))
    out = play(state(sum_smaller_probs=True, token_confidence=True), [event(b"bc", LENGTH, logprobs=logprobs)])[
        0
    ].outputs[0]
    assert (out.sum_smaller_probs, out.token_confidence, out.logprobs) == ([0.25, 0.25], [1.5, 1.5], None)


@pytest.mark.covers("E7")
def test_prompt_logprobs_begin_with_none_and_are_told_once_in_deltas():
    pieces = [(entry(b"a", 98),), (entry(b"ab", 99),)]
    events = [event(prompt_logprobs=pieces[0]), event(b"x", LENGTH, prompt_logprobs=pieces[1])]
    whole = play(state(prompt=b"abc", prompt_logprobs=2), events, False)[-1].prompt_logprobs
    assert whole[0] is None and [next(iter(p)) for p in whole[1:]] == [98, 99]
    told = [o.prompt_logprobs for o in play(state(prompt=b"abc", prompt_logprobs=2), events)]
    assert told[0] + told[1] == whole
    assert play(state(), [event(b"x", LENGTH)])[0].prompt_logprobs is None


@pytest.mark.covers("D36")
def test_n_choices_are_one_request_that_ends_with_the_last_of_them():
    events = [event(b"a"), event(b"b", choice=1), event(b"c", LENGTH, choice=1), event(b"d", EOS_END)]
    outputs = play(state(n=2), events)
    assert [o.finished for o in outputs] == [False, False, False, True]
    assert [[c.index for c in o.outputs] for o in outputs] == [[0], [1], [1], [0]]
    whole = play(state(n=2), events, False)[-1]
    assert [c.text for c in whole.outputs] == ["a", "bc"]
    assert [c.finish_reason for c in whole.outputs] == ["stop", "length"]


@pytest.mark.covers("D37")
def test_a_refused_request_gives_one_empty_finished_output():
    finish = Finish(FinishReason.PROMPT_TOO_LONG, None, "the prompt has 99 tokens and max_model_len is 64")
    output = play(state(), [event(finish=finish)])[0]
    assert output.finished and output.outputs[0].token_ids == [] and output.outputs[0].text == ""
    assert output.outputs[0].finish_reason == "prompt_length_exceeded" and "99" in output.finish_detail


def test_without_detokenizing_there_are_ids_only():
    out = play(state(detokenize=False, logprobs=0), [event(b"b", LENGTH, logprobs=(entry(b"h", 98, 0),))])[0].outputs[0]
    assert (out.text, out.token_ids, out.logprobs[0][98].decoded_token) == ("", [98], None)


@pytest.mark.covers("D6")
def test_times_are_kept_on_one_clock_from_arrival_to_the_end():
    moves = (Move(10.5, None, "waiting", "add"), Move(10.55, "waiting", "running", "schedule"))
    request = state()
    play(request, [event(b"ab", time_s=11.0), event(b"c", LENGTH, time_s=12.0, timeline=moves)])
    times = request.metrics
    assert (times.arrival_s, times.enqueued_s, times.first_scheduled_s) == (10.0, 10.5, 10.55)
    assert times.queue_time_s == pytest.approx(0.05) and times.time_to_first_token_s == 1.0
    assert times.token_times_s == [11.0, 11.0, 12.0] and times.finished_s == 12.0


def test_cached_tokens_preemptions_and_the_timeline_are_told():
    moves = (Move(1.0, None, "waiting", "add"),)
    output = play(state(), [event(b"a", LENGTH, num_cached_tokens=16, num_preemptions=2, timeline=moves)])[0]
    assert (output.num_cached_tokens, output.num_preemptions, output.timeline) == (16, 2, moves)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.integers(1, 8))
def test_a_vector_is_cut_then_brought_to_length_1(hidden, dimensions):
    vector = finish_vector(hidden, Pooling(dimensions=dimensions))
    assert len(vector) == min(dimensions, len(hidden))
    length = math.sqrt(sum(x * x for x in vector))
    assert length == pytest.approx(1) or not any(hidden[:dimensions]) or max(map(abs, hidden[:dimensions])) < 1e-150
    assert finish_vector(hidden, Pooling(normalize=False)) == hidden


def test_the_processor_drops_what_comes_for_a_closed_request():
    done = []
    processor = OutputProcessor(BYTES, done.append)
    request = Request(7, "client", (1,), sampling=Sampling())
    opened = processor.add(request)
    assert processor.find("client") == [7] and processor.num_open == 1
    assert processor.take([event(b"a"), event(b"b", LENGTH)]) == [opened] == done
    assert processor.take([event(b"c")]) == [] and processor.find("client") == []
    processor.close(7)
