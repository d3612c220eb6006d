"""The offline face: order, parameters, reasons, and what one bad request may not do to the others."""

import math
import os
import signal

import pytest
from tests.engine import fakes, toys
from tests.engine.fakes import EOS, FakeExecutor

from headrace.engine.llm_engine import LLMEngine
from headrace.llm import LLM
from headrace.words.errors import EngineDeadError, RequestError
from headrace.words.params import PoolingParams, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def llm(executor: FakeExecutor | None = None, **options) -> LLM:
    return LLM.from_engine(fakes.engine(executor, **options))


def scripted(*tokens: int) -> FakeExecutor:
    """A model that says the same whatever the prompt, then letters."""

    def script(history, admission):
        index = len(history) - admission.num_prompt_tokens
        return tokens[index] if index < len(tokens) else 120

    return FakeExecutor(script)


def say(*tokens: int, engine=None, **params):
    """What comes out when the model says `tokens`."""
    model = llm(scripted(*tokens), **(engine or {}))
    return model.generate("hi", SamplingParams(**params), use_tqdm=False)[0].outputs[0]


@pytest.mark.covers("M2", "E12")
def test_each_prompt_has_its_own_parameters():
    params = [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5, seed=3)]
    first, second = llm().generate(["a", [98, 99]], params, use_tqdm=False)
    assert (len(first.outputs[0].token_ids), len(second.outputs[0].token_ids)) == (2, 5)
    assert (first.prompt, second.prompt) == ("a", None) and second.outputs[0].seed == 3


@pytest.mark.covers("M9", "E12")
def test_results_come_in_the_order_of_the_prompts_whatever_finishes_first():
    lengths = (9, 1, 5)
    outputs = llm().generate(["a"] * 3, [SamplingParams(max_tokens=n) for n in lengths], use_tqdm=False)
    assert tuple(len(o.outputs[0].token_ids) for o in outputs) == lengths


def test_no_prompts_give_no_results():
    assert llm().generate([], use_tqdm=False) == []


def test_text_is_the_decoded_ids():
    output = llm().generate("hi", GREEDY, use_tqdm=False)[0]
    assert output.outputs[0].text == toys.bytewise().decode(output.outputs[0].token_ids)
    assert output.finished and output.metrics.time_to_first_token_s >= 0


@pytest.mark.covers("D20", "M8")
def test_an_end_of_sequence_token_ends_and_nothing_follows():
    out = say(5, EOS, 9, max_tokens=10)
    assert (out.token_ids, out.finish_reason, out.stop_reason) == ([5, EOS], "stop", None)


@pytest.mark.covers("D21", "M8", "E2")
def test_the_end_of_sequence_on_the_last_allowed_token_is_a_stop():
    assert say(5, 6, EOS, max_tokens=3).finish_reason == "stop"
    ignoring = say(5, 6, EOS, max_tokens=3, ignore_eos=True)
    assert (ignoring.finish_reason, len(ignoring.token_ids)) == ("length", 3)


@pytest.mark.covers("D22", "M8", "E1")
def test_a_sequence_ends_when_it_reaches_max_model_len():
    engine = {"max_model_len": 8}
    (output,) = llm(**engine).generate([[65] * 5], SamplingParams(max_tokens=100), use_tqdm=False)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (3, "length")


@pytest.mark.covers("D7")
def test_an_enormous_max_tokens_is_the_room_left():
    assert len(say(max_tokens=2**31).token_ids) == 62


@pytest.mark.covers("D24", "E2")
def test_the_end_of_sequence_is_a_set():
    assert say(5, 7, engine={"eos_token_ids": frozenset({2, 7})}).token_ids == [5, 7]


@pytest.mark.covers("E2")
def test_a_stop_token_ends_and_is_named():
    out = say(*b"ab", max_tokens=9, stop_token_ids=[98])
    assert (out.text, out.token_ids, out.finish_reason, out.stop_reason) == ("a", [*b"ab"], "stop", 98)


@pytest.mark.covers("D25", "E3")
def test_a_stop_string_ends_across_token_edges_and_later_tokens_never_come():
    words = [toys.bytewise().backend.token_to_id(word) for word in ("E", "ND")]
    out = say(*b"ok ", *words, *b"more", stop=["END"], max_tokens=20, logprobs=0)
    assert (out.text, out.finish_reason, out.stop_reason) == ("ok ", "stop", "END")
    assert out.token_ids == [*b"ok ", *words] and len(out.logprobs) == 5


@pytest.mark.covers("E3")
def test_before_min_tokens_stop_strings_are_ignored():
    out = say(*b"abab", stop="ab", min_tokens=3, max_tokens=9)
    assert (out.text, out.token_ids) == ("ab", [*b"abab"])


@pytest.mark.covers("D25")
def test_without_parameters_there_is_no_limit_of_16():
    assert len(llm().generate("hi", use_tqdm=False)[0].outputs[0].token_ids) > 16


def test_the_checkpoints_defaults_hold_where_no_parameters_are_given():
    model = llm(others={"sampling_defaults": {"temperature": 0.0, "max_tokens": 3}})
    assert model.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)
    assert len(model.generate("hi", use_tqdm=False)[0].outputs[0].token_ids) == 3


@pytest.mark.covers("D39")
def test_forced_tokens_are_emitted_with_their_logprobs():
    out = say(forced_tokens=[5, 6, 7], max_tokens=3, logprobs=1)
    assert (out.token_ids, out.finish_reason) == ([5, 6, 7], "length")
    assert [next(iter(position)) for position in out.logprobs] == [5, 6, 7]


@pytest.mark.covers("D1", "E6")
def test_n_choices_differ_by_their_index_and_repeat_with_their_seed():
    params = SamplingParams(n=3, seed=9, max_tokens=5)
    first, again = (llm().generate("hi", params, use_tqdm=False)[0] for _ in range(2))
    ids = [choice.token_ids for choice in first.outputs]
    assert len({tuple(i) for i in ids}) == 3 and ids == [choice.token_ids for choice in again.outputs]
    assert [choice.index for choice in first.outputs] == [0, 1, 2]


def test_unseeded_requests_repeat_from_run_to_run_and_differ_from_each_other():
    runs = [[o.outputs[0].token_ids for o in llm().generate(["hi"] * 3, use_tqdm=False)] for _ in range(2)]
    assert runs[0] == runs[1] and len({tuple(ids) for ids in runs[0]}) == 3


@pytest.mark.covers("D42", "E6")
def test_a_seeded_request_draws_the_same_alone_in_a_crowd_and_preempted():
    params = SamplingParams(seed=1, max_tokens=9)
    alone = llm().generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids
    crowd = llm().generate([*["other"] * 31, "hello"], params, use_tqdm=False)[-1].outputs[0].token_ids
    tight = llm(num_blocks=7).generate(["hello"] * 5, params, use_tqdm=False)
    assert alone == crowd == tight[-1].outputs[0].token_ids
    assert sum(output.num_preemptions for output in tight) > 0


@pytest.mark.covers("D40")
def test_preemptions_recomputed_tokens_and_reasons_are_counted():
    model = llm(num_blocks=7)
    outputs = model.generate(["hello"] * 5, SamplingParams(max_tokens=9), use_tqdm=False)
    metrics = model.get_metrics()
    assert metrics.num_preemptions == sum(o.num_preemptions for o in outputs) > 0
    assert metrics.num_recomputed_tokens > 0
    assert metrics.num_finished["length"] + metrics.num_finished["stop"] == 5 == metrics.num_accepted


@pytest.mark.covers("D41")
def test_fair_share_does_not_make_a_single_request_wait_for_a_crowd():
    engine = fakes.engine(scheduling_policy="fair", max_num_seqs=2)
    driven = LLMEngine(engine)
    for i in range(20):
        driven.add_request(f"crowd {i}", "hello", SamplingParams(max_tokens=3, user="crowd"))
    driven.add_request("single", "hello", SamplingParams(max_tokens=3, user="one"))
    ended = [o.request_id for _ in range(100) for o in driven.step() if o.finished]
    assert len(ended) == 21 and ended.index("single") < 6


def test_a_lower_priority_value_comes_first():
    model = llm(scheduling_policy="priority", max_num_seqs=1)
    outputs = model.generate(["a"] * 3, SamplingParams(max_tokens=2), use_tqdm=False, priority=[5, 1, 3])
    starts = [output.metrics.first_scheduled_s for output in outputs]
    assert starts[1] < starts[2] < starts[0]
    with pytest.raises(RequestError, match="one for each of the 1 prompts"):
        model.generate(["a"], priority=[1, 2])


@pytest.mark.covers("E7")
def test_scoring_gives_prompt_logprobs_and_no_tokens():
    output = llm().generate("abc", SamplingParams(max_tokens=0, prompt_logprobs=2), use_tqdm=False)[0]
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 3
    assert [next(iter(p)) for p in output.prompt_logprobs[1:]] == [*b"bc"]
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([], "length")


def test_prompt_logprobs_are_the_same_in_chunks():
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    whole, chunked = (
        llm(max_num_batched_tokens=budget, max_num_seqs=4).generate("a long prompt", params, use_tqdm=False)[0]
        for budget in (64, 4)
    )
    assert whole.prompt_logprobs == chunked.prompt_logprobs


def test_embeddings_have_length_1_and_the_asked_dimensions():
    vectors = llm().embed(["abc", [97, 98]], PoolingParams(dimensions=2), use_tqdm=False)
    assert [len(v.embedding) for v in vectors] == [2, 2]
    assert math.hypot(*vectors[0].embedding) == pytest.approx(1)
    assert vectors[0].finished and vectors[0].finish_reason == "length"


def test_a_mean_over_chunks_is_the_mean():
    means = [
        llm(max_num_batched_tokens=budget, max_num_seqs=4).embed("a long prompt", PoolingParams("mean"), use_tqdm=False)
        for budget in (64, 4)
    ]
    assert means[0][0].embedding == pytest.approx(means[1][0].embedding)


def test_parameters_of_the_wrong_kind_are_refused():
    with pytest.raises(RequestError, match="must be SamplingParams, got PoolingParams"):
        llm().generate("a", PoolingParams())
    with pytest.raises(RequestError, match="must be PoolingParams, got SamplingParams"):
        llm().embed("a", SamplingParams())


def test_chat_renders_and_answers():
    model = llm()
    output = model.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)[0]
    assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids == toys.bytewise().encode(output.prompt)
    several = model.chat([[{"role": "user", "content": c}] for c in "ab"], GREEDY, use_tqdm=False)
    assert [o.prompt[17] for o in several] == ["a", "b"]
    bare = "{{ messages[0].content }}"
    own = model.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False, chat_template=bare)
    assert own[0].prompt == "hi"


def test_a_model_without_a_chat_template_says_what_to_do():
    with pytest.raises(RequestError, match="chat_template: this model has none; pass one"):
        llm(others={"chat_template": None}).chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("messages", [[], "hi", None])
def test_no_conversation_is_refused(messages):
    with pytest.raises(RequestError):
        llm().chat(messages)


class Interrupting(FakeExecutor):
    """Ctrl-C while step 3 runs."""

    def __init__(self, how) -> None:
        def on_forward(plan) -> None:
            if plan.step == 3:
                how()

        super().__init__(on_forward=on_forward)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", [press_ctrl_c, raise_interrupt])
@pytest.mark.parametrize("others", [{}, {"async_scheduling": True}], ids=["in order", "overlap"])
def test_ctrl_c_aborts_the_call_and_leaves_the_model_usable(how, others):
    model = llm(Interrupting(how), others=others, max_num_seqs=4)
    with pytest.raises(KeyboardInterrupt):
        model.generate(["hello"] * 9, GREEDY, use_tqdm=False)
    assert model.llm_engine.get_num_unfinished_requests() == 0
    assert model.get_metrics().num_finished["abort"] == 9
    fresh = llm().generate("hello", GREEDY, use_tqdm=False)[0].outputs[0]
    assert model.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == fresh.token_ids
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_requests_that_were_added_below_keep_their_outputs():
    model = llm()
    model.llm_engine.add_request("below", "hi", SamplingParams(max_tokens=4))
    model.generate("hello", SamplingParams(max_tokens=9), use_tqdm=False)
    finals = [o for _ in range(10) for o in model.llm_engine.step() if o.finished]
    assert [o.request_id for o in finals] == ["below"]


class CountingBar:
    """tqdm's interface."""

    def __init__(self, total: int, desc: str) -> None:
        self.total, self.count, self.is_closed = total, 0, False

    def update(self, n: int) -> None:
        self.count += n

    def close(self) -> None:
        self.is_closed = True


def test_the_callers_own_bar_sees_every_request():
    bars = []

    def make(**options):
        bars.append(CountingBar(**options))
        return bars[-1]

    llm().generate(["a", "x" * 90, "b"], GREEDY, use_tqdm=make)
    assert (bars[0].total, bars[0].count, bars[0].is_closed) == (3, 3, True)


def test_the_default_bar_stays_silent_where_there_is_no_terminal(capsys):
    llm().generate(["a", "b"], GREEDY)
    assert capsys.readouterr() == ("", "")


def test_after_close_every_call_says_so():
    executor = FakeExecutor()
    with llm(executor) as model:
        model.generate("a", GREEDY, use_tqdm=False)
    model.close()
    assert executor.num_closed >= 1
    with pytest.raises(EngineDeadError, match="it was closed"):
        model.generate("a", GREEDY)
