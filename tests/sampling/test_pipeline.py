"""The order in which logits become tokens, what each parameter does there, and what comes with the tokens."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.worker.toy import ToyOps

from headrace.sampling.counts import TokenCounts
from headrace.sampling.pipeline import NOTHING_ALLOWED, Drawn, Places, draw
from headrace.sampling.table import SamplingTable
from headrace.words.params import Sampling

EOS = 9
INF = float("inf")


class CountingOps(ToyOps):
    """Notes which ops are called, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if callable(value) and not name.startswith("_"):
            self.calls.append(name)
        return value


def draw_rows(
    logits: Sequence[Sequence[float]],
    params: Sequence[Sampling],
    prompts: Sequence[Sequence[int]] = (),
    outputs: Sequence[Sequence[int]] = (),
    drafts: Sequence[Sequence[int]] = (),
    bits: dict[int, np.ndarray] | None = None,
    ops: ToyOps | None = None,
) -> Drawn:
    """Row i asks for params[i], after its prompt, its output and its drafts."""
    table = SamplingTable(len(params), (EOS,))
    tokens = np.zeros((len(params), 64), np.int32)
    positions, num_outputs = [], []
    for row, sampling in enumerate(params):
        prompt, output, guess = (list(part[row]) if part else [] for part in (prompts, outputs, drafts))
        text = prompt + output
        tokens[row, : len(text) + len(guess)] = text + guess
        table.admit(row, sampling, 7, 0, tokens[row, : len(text)], len(prompt))
        positions.append(len(text) + len(guess))
        num_outputs.append(len(output) + len(guess))
    rows = np.arange(len(params), dtype=np.int32)
    places = Places(rows, np.array(positions, np.int32), np.array(num_outputs, np.int32))
    return draw(ops or ToyOps(), torch.tensor(logits, dtype=torch.float32), places, table, tokens, bits)


def greedy(logits: Sequence[float], params: dict[str, object], **texts: object) -> int:
    """The token that one greedy row gives."""
    wrapped = {name: [text] for name, text in texts.items()}
    return int(draw_rows([logits], [Sampling(temperature=0.0, **params)], **wrapped).token_ids[0])


TEN = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


@pytest.mark.covers("E5")
def test_a_batch_without_processors_is_one_argmax():
    ops = CountingOps()
    drawn = draw_rows([TEN] * 32, [Sampling(temperature=0.0)] * 32, ops=ops)
    assert drawn.token_ids.tolist() == [9] * 32
    assert ops.calls == ["finite_rows", "sample"]


@pytest.mark.covers("E5")
def test_the_edits_come_in_the_order_of_the_design_each_once_for_all_rows():
    every = Sampling(
        temperature=1.0,
        allowed_token_ids=(1, 2, 3, 4),
        bad_words=((1,),),
        min_tokens=2,
        logit_bias=((2, 1.0),),
        presence_penalty=0.5,
        logprobs=1,
    )
    ops = CountingOps()
    bits = {0: np.array([0b11110], np.uint32)}
    draw_rows([TEN] * 3, [every, Sampling(temperature=0.0), every], outputs=[[1]] * 3, bits=bits, ops=ops)
    assert ops.calls == [
        *("finite_rows", "gather", "keep_tokens", "mask_tokens", "add_bias", "penalize", "mask_bits"),
        *("finite_rows", "sample", "gather", "logprobs"),
    ]


def test_allowed_ids_are_the_only_ones():
    assert greedy(TEN, {"allowed_token_ids": (2, 5)}) == 5


def test_a_bad_word_of_one_token_is_never_drawn():
    assert greedy(TEN, {"bad_words": ((9,), (8,))}) == 7


@pytest.mark.parametrize(
    ("text", "token"), [([3, 4], 8), ([4], 9), ([3, 4, 1], 9), ([], 9), ([4, 3], 9)]
)
def test_the_last_token_of_a_bad_word_is_forbidden_behind_the_others(text, token):
    assert greedy(TEN, {"bad_words": ((3, 4, 9),)}, outputs=text) == token


def test_a_bad_word_may_begin_in_the_prompt_and_in_a_draft():
    assert greedy(TEN, {"bad_words": ((3, 4, 9),)}, prompts=[3], outputs=[4]) == 8
    assert greedy(TEN, {"bad_words": ((3, 4, 9),)}, prompts=[3], drafts=[4]) == 8


@pytest.mark.covers("E3")
@pytest.mark.parametrize(("num_outputs", "token"), [(0, 7), (1, 7), (2, 9)])
def test_min_tokens_forbids_stop_ids_and_eos_until_reached(num_outputs, token):
    params = {"min_tokens": 2, "stop_token_ids": (8,)}
    assert greedy(TEN, params, prompts=[1, 1, 1], outputs=[1] * num_outputs) == token


def test_min_tokens_lets_eos_pass_where_it_does_not_stop():
    assert greedy(TEN, {"min_tokens": 2, "ignore_eos": True, "stop_token_ids": (8,)}) == 9


def test_min_tokens_counts_drafts():
    assert greedy(TEN, {"min_tokens": 2}, outputs=[1], drafts=[1]) == 9


def test_bias_is_added_and_lifts_no_forbidden_token():
    assert greedy(TEN, {"logit_bias": ((3, 6.5),)}) == 3
    assert greedy(TEN, {"logit_bias": ((3, 100.0),), "bad_words": ((3,),)}) == 9


def test_repetition_counts_prompt_and_output_and_weakens_both_signs():
    assert greedy([3.0, 2.0, 1.9], {"repetition_penalty": 2.0}, prompts=[0], outputs=[1]) == 2
    assert greedy([-1.0, -1.5, -3.0], {"repetition_penalty": 2.0}, prompts=[0]) == 1


def test_presence_and_frequency_count_the_output_only():
    logits = [3.0, 2.5, 1.0]
    assert greedy(logits, {"presence_penalty": 1.0}, prompts=[0, 0]) == 0
    assert greedy(logits, {"presence_penalty": 1.0}, outputs=[0, 0, 0]) == 1
    assert greedy(logits, {"frequency_penalty": 0.2}, outputs=[0, 0]) == 0
    assert greedy(logits, {"frequency_penalty": 0.2}, outputs=[0, 0, 0]) == 1
    assert greedy(logits, {"frequency_penalty": 0.2}, outputs=[0, 0], drafts=[0]) == 1


@pytest.mark.covers("E5")
def test_penalties_act_on_biased_logits():
    """(−1 + 5) / 2 = 2; the other order would give −1 · 2 + 5 = 3."""
    assert greedy([-1.0, 2.2], {"logit_bias": ((0, 5.0),), "repetition_penalty": 2.0}, prompts=[0]) == 1
    assert greedy([-1.0, 1.8], {"logit_bias": ((0, 5.0),), "repetition_penalty": 2.0}, prompts=[0]) == 0


def test_masks_that_together_forbid_everything_are_a_failure_of_that_row():
    closed = Sampling(temperature=1.0, allowed_token_ids=(3,), bad_words=((3,),), logprobs=1)
    fine = Sampling(temperature=1.0, logprobs=1)
    drawn = draw_rows([TEN] * 3, [fine, closed, fine])
    assert drawn.failures == [None, NOTHING_ALLOWED, None]
    assert drawn.logprobs[1] is None
    alone = draw_rows([TEN], [fine])
    assert (drawn.token_ids[0], drawn.logprobs[0]) == (alone.token_ids[0], alone.logprobs[0])


@pytest.mark.covers("D39")
def test_forced_tokens_pass_every_mask():
    assert greedy(TEN, {"forced_tokens": (5, 6), "allowed_token_ids": (1,)}, outputs=[5]) == 6
    assert greedy(TEN, {"forced_tokens": (5, 6), "allowed_token_ids": (1,)}, outputs=[5, 6]) == 1


def scored(params: dict[str, object], logits: Sequence[float] = (0.0, 1.0, 2.0, 3.0), **texts: object):
    entry = draw_rows([logits], [Sampling(**params)], **{name: [text] for name, text in texts.items()}).logprobs[0]
    assert entry is not None
    return entry


@pytest.mark.covers("E7")
def test_raw_logprobs_are_those_before_any_processor():
    entry = scored({"temperature": 0.0, "allowed_token_ids": (1,), "logit_bias": ((1, 3.0),), "logprobs": 2})
    true = torch.tensor([0.0, 1, 2, 3]).log_softmax(0).tolist()
    assert entry.token_ids == (1, 3, 2)
    assert np.allclose(entry.logprobs, [true[1], true[3], true[2]], atol=1e-6)
    assert entry.rank == 3


@pytest.mark.covers("E7")
def test_processed_logprobs_are_those_that_were_drawn_from():
    params = {"temperature": 0.5, "top_k": 2, "logit_bias": ((1, 1.5),), "logprobs": 4, "logprobs_mode": "processed"}
    entry = scored(params)
    true = torch.tensor([2.5, 3.0]).div(0.5).log_softmax(0).tolist()
    assert entry.token_ids[1:] == (3, 1)
    assert np.allclose(entry.logprobs[1:], true[::-1], atol=1e-6)
    assert entry.logprobs[0] == entry.logprobs[1 + entry.token_ids[1:].index(entry.token_ids[0])]


def test_processed_logprobs_of_a_greedy_row_are_those_after_the_edits():
    entry = scored({"temperature": 0.0, "bad_words": ((3,),), "logprobs": 4, "logprobs_mode": "processed"})
    assert np.allclose(entry.logprobs[1:], torch.tensor([2.0, 1, 0]).log_softmax(0), atol=1e-6)
    assert entry.token_ids == (2, 2, 1, 0)


def test_each_row_gets_as_many_alternatives_as_it_asked_for():
    wants = [None, 0, 3, 1]
    drawn = draw_rows([TEN] * 4, [Sampling(temperature=0.0, logprobs=n) for n in wants])
    assert [None if entry is None else len(entry.token_ids) - 1 for entry in drawn.logprobs] == wants


@pytest.mark.covers("D35")
def test_sum_of_smaller_probabilities_and_confidence_come_on_request():
    logits = np.log([0.5, 0.3, 0.2]).tolist()
    plain = scored({"temperature": 0.0, "logprobs": 1}, logits)
    assert (plain.sum_smaller_probs, plain.token_confidence) == (None, None)
    both = scored(
        {"temperature": 0.0, "forced_tokens": (1,), "sum_smaller_probs": True, "token_confidence": True}, logits
    )
    assert both.token_ids == (1,)
    assert math.isclose(both.sum_smaller_probs, 0.2, abs_tol=1e-6)
    assert math.isclose(both.token_confidence, -sum(logits) / 3, abs_tol=1e-5)


def test_confidence_looks_at_the_20_most_likely_tokens():
    logits = np.random.default_rng(2).standard_normal(300).astype(np.float32).tolist()
    entry = scored({"temperature": 0.0, "token_confidence": True}, logits)
    top = torch.tensor(logits).double().log_softmax(0).topk(20).values
    assert math.isclose(entry.token_confidence, -float(top.mean()), abs_tol=1e-5)
    assert len(entry.token_ids) == 1


def test_counts_follow_appends_and_leave_drafts_uncounted():
    counts = TokenCounts(np.array([5, 5, 6], np.int32), np.array([6], np.int32))
    for token_id in [7, 6, *range(100, 140), 7]:
        counts.append(token_id)

    def found(drafts: Sequence[int] = ()) -> dict[int, int]:
        return dict(zip(*(part.tolist() for part in counts.entries(drafts)), strict=True))

    expected = {5: 0, 6: 2, 7: 2} | dict.fromkeys(range(100, 140), 1)
    assert found() == expected
    assert found([7, 200, 200]) == expected | {7: 3, 200: 2}
    assert found() == expected
