"""A whole step in one native call: the bits of its ops called one by one, whatever is wanted of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest
from tests.models import oracle
from tests.models.driver import DictSource
from tests.ops.native.machines import ISAS, KINDS, ops_of
from tests.ops.slow_sampling import sampling_inputs

from headrace.comm import SoloComm
from headrace.models.registry import family
from headrace.ops.base import Computed, StepInputs, Wanted
from headrace.ops.stepwise import Stepwise

TOKENS, BLOCK = 23, 4
CUTS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": [0.0, 0.7, 1.3, 5.0, 1.0], "top_p": 0.9, "top_k": 40, "min_p": 0.01},
}


class Head(NamedTuple):
    """A model whose logits are scaled and capped."""

    model: object
    ops: object
    scale: float
    soft_cap: float | None

    def forward(self, inputs, caches):
        return self.model.forward(inputs, caches)

    def logits(self, hidden):
        return self.ops.logits(hidden, self.model.head, self.scale, self.soft_cap)


def prompt(block: int = BLOCK) -> StepInputs:
    """Two segments, of 14 and of 9 tokens."""
    positions = np.concatenate([np.arange(14), np.arange(9)]).astype(np.int32)
    tables = np.array([[1, 2, 3, 4], [5, 6, 7, 0]], np.int32)
    slots = tables[np.repeat([0, 1], [14, 9]), positions // block] * block + positions % block
    ids = (np.arange(TOKENS) * 31 % 101).astype(np.int32)
    ends, lengths = np.array([0, 14, 23], np.int32), np.array([14, 9], np.int32)
    return StepInputs(ids, positions, slots.astype(np.int64), ends, lengths, tables)


def next_tokens() -> StepInputs:
    """One more token of each segment."""
    positions, slots = np.array([14, 9], np.int32), np.array([4 * BLOCK + 2, 7 * BLOCK + 1], np.int64)
    ids, ends, lengths = np.array([5, 6], np.int32), np.array([0, 1, 2], np.int32), np.array([15, 10], np.int32)
    return StepInputs(ids, positions, slots, ends, lengths, np.array([[1, 2, 3, 4], [5, 6, 7, 0]], np.int32))


def build(ops, embedding: Mapping[int, float] | None = None, block: int = BLOCK):
    """A tiny Llama and its caches; `embedding` replaces the embeddings of some tokens."""
    config, weights = oracle.config(), dict(oracle.arrays(oracle.make()))
    table = weights["model.embed_tokens.weight"].copy()
    for token_id, value in (embedding or {}).items():
        table[token_id] = value
    weights["model.embed_tokens.weight"] = table
    model = family(config.architecture).build(config, DictSource(weights), ops, SoloComm(), 64)
    return model, [ops.kv_cache(8, block, spec.num_heads, spec.head_dim) for spec in model.cache_specs()]


def run(
    kind,
    wanted: Wanted,
    is_lowered: bool,
    scale: float = 1.0,
    cap: float | None = None,
    embedding: Mapping[int, float] | None = None,
    block: int = BLOCK,
) -> Computed:
    ops = ops_of(*kind, "bfloat16")
    model, caches = build(ops, embedding, block)
    head = Head(model, ops, scale, cap)
    step = ops.compile(head, caches, TOKENS, 6) if is_lowered else Stepwise(head, ops)
    return step.run(prompt(block), caches, wanted)


def wanted(cut: str, scored: tuple[int, ...] = (), num_top: int = 0, hidden: bool = True) -> Wanted:
    """Logits of six tokens, of which all but the first are drawn."""
    tokens, drawn = np.array([3, 13, 14, 20, 21, 22], np.int32), np.array([1, 2, 3, 4, 5], np.int32)
    return Wanted(tokens, drawn, sampling_inputs(5, **CUTS[cut]), np.array(scored, np.int32), num_top, hidden)


def wanted_greedily(*tokens: int, hidden: bool) -> Wanted:
    """Logits of these tokens, each drawn."""
    rows = np.arange(len(tokens), dtype=np.int32)
    drawn = sampling_inputs(len(tokens), temperature=0.0)
    return Wanted(np.array(tokens, np.int32), rows, drawn, np.zeros(0, np.int32), 0, hidden)


def bits(computed: Computed) -> list[bytes]:
    parts = (*computed[:-1], *computed.logprobs)
    return [np.ascontiguousarray(part).tobytes() for part in parts if part is not None]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("scale", "cap"), [(1.0, None), (0.125, None), (1.0, 3.0)])
def test_body_head_draws_and_scores_equal_the_ops_one_by_one_on_every_instruction_set(cut, scale, cap):
    asked = wanted(cut, scored=(1, 4), num_top=5)
    expected = bits(run((ISAS[-1], 1), asked, False, scale, cap))
    for kind in KINDS:
        assert bits(run(kind, asked, True, scale, cap)) == expected, kind


@pytest.mark.parametrize("tokens", [(3, 13, 14, 20, 21, 22), (13, 22), (22,), (0,), (5, 6, 7), tuple(range(17, 23))])
@pytest.mark.parametrize("block", [4, 16])
def test_logits_are_the_same_bits_whether_or_not_the_other_tokens_go_through_the_last_layer(tokens, block):
    for kind in KINDS:
        found, whole = (run(kind, wanted_greedily(*tokens, hidden=told), True, block=block) for told in (False, True))
        assert found.hidden is None and whole.hidden.shape[0] == TOKENS
        assert bits(found) == bits(whole)[1:], kind


@pytest.mark.parametrize("tokens", [(13,), (14,), ()])
def test_keys_of_tokens_of_which_nothing_is_wanted_are_kept_for_later_steps(tokens):
    """The first step wants something of one segment at most; the second goes on with both."""
    later = []
    for told in (False, True):
        ops = ops_of(ISAS[-1], 2, "bfloat16")
        model, caches = build(ops)
        step = ops.compile(Head(model, ops, 1.0, None), caches, TOKENS, 6)
        step.run(prompt(), caches, wanted_greedily(*tokens, hidden=told))
        later.append(bits(step.run(next_tokens(), caches, wanted_greedily(0, 1, hidden=False))))
    assert later[0] == later[1]


def test_a_step_that_wants_hidden_states_gives_them_alone():
    nothing = wanted_greedily(hidden=True)
    found, other = (run((ISAS[-1], 2), nothing, is_lowered) for is_lowered in (True, False))
    assert found.hidden.tobytes() == other.hidden.tobytes()
    assert found.token_ids.size == found.is_finite.size == 0


@pytest.mark.covers("E6")
def test_logits_that_are_not_finite_are_told_and_disturb_nobody():
    """The embedding of the last token of the first segment is not a number."""
    asked, last = wanted("drawn", scored=(0, 3, 4), num_top=2), prompt().token_ids[13]
    for value in (np.nan, np.inf):
        for is_lowered in (True, False):
            healthy = run((ISAS[-1], 2), asked, is_lowered)
            found = run((ISAS[-1], 2), asked, is_lowered, embedding={last: value})
            assert found.is_finite.tolist() == [False, True, True, True, True]
            assert found.token_ids[1:].tolist() == healthy.token_ids[1:].tolist()
            for column, expected in zip(found.logprobs, healthy.logprobs, strict=True):
                assert column[1:].tobytes() == expected[1:].tobytes()


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("tokens", [3, 13, 14, 20, 21, 23], "no such token"),
        ("tokens", [3, 14, 13, 20, 21, 22], "tokens rise"),
        ("tokens", [3, 13, 13, 20, 21, 22], "tokens rise"),
        ("drawn", [0, 2, 3, 4, 6], "no such row"),
        ("scored", [5], "no such draw"),
        ("drawn", [0, 1], "one value per row"),
    ],
)
def test_what_is_wanted_of_nothing_there_is_refused(field, values, message):
    asked = wanted("greedy", scored=(0,))._replace(**{field: np.array(values, np.int32)})
    with pytest.raises(ValueError, match=message):
        run((ISAS[-1], 1), asked, is_lowered=True)


def test_more_logits_than_the_program_has_room_for_are_refused():
    asked = wanted("greedy")._replace(tokens=np.arange(7, dtype=np.int32))
    with pytest.raises(ValueError, match="more logits"):
        run((ISAS[-1], 1), asked, is_lowered=True)


def test_a_profile_counts_the_calls_bytes_and_flops_that_the_shapes_say_and_ends_when_it_is_told():
    ops = ops_of(ISAS[-1], 2, "bfloat16")
    model, caches = build(ops)
    step = ops.compile(model, caches, TOKENS, 6)
    step.run(prompt(), caches, wanted("greedy"))
    step.profiler.start()
    for _ in range(2):
        step.run(prompt(), caches, wanted("greedy", scored=(0, 1), num_top=1))
    profile = step.profiler.stop()
    step.run(prompt(), caches, wanted("greedy"))
    found = {(op.kind, op.shape): op for op in profile.ops}
    assert profile.calls == 2
    assert profile.seconds >= sum(op.seconds for op in profile.ops) > 0
    vocab, hidden = model.head.shape
    head = found["linear", f"{vocab} × {hidden}"]
    assert (head.calls, head.flops) == (2, 2 * 2 * 6 * vocab * hidden)
    assert head.bytes == 2 * (model.head.nbytes + 6 * (2 * hidden + 4 * vocab))
    spec, layers = model.cache_specs()[0], len(caches)
    heads = oracle.config().num_heads
    attend = found["attend", f"{heads} × {spec.num_heads} × {spec.head_dim}"]
    pairs = 14 * 15 // 2 + 9 * 10 // 2
    assert (attend.calls, attend.flops) == (2 * layers, 2 * layers * 4 * heads * spec.head_dim * pairs)
    assert found["draw", f"{vocab}"].bytes == 2 * 5 * 4 * vocab
    assert found["logprobs", f"{vocab}"].bytes == 2 * 2 * 4 * vocab
    assert step.profiler.stop() == profile
