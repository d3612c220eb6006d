"""The plan as flat arrays: the figures of the design, and what the buffers promise."""

import numpy as np
import pytest

from headrace.words.errors import EngineError
from headrace.words.params import Sampling
from headrace.words.plan import Admission, Emits, Growth, Segment, StepPlan
from headrace.worker.inputs import InputBuffers
from headrace.worker.rows import Rows
from headrace.worker.verify import emitting

TEXT = (11, 12, 13, 14, 15, 16, 17)


def admission(row: int, token_ids: tuple[int, ...], block_ids: tuple[int, ...]) -> Admission:
    return Admission(row, 0, row, token_ids, len(token_ids), block_ids, Sampling(temperature=0.0), None, 0, 0)


def segment(row: int, start: int, length: int, num_drafts: int = 0) -> Segment:
    return Segment(row, 0, row, start, length, num_drafts, Emits.TOKEN)


def inputs_of(rows: Rows, *segments: Segment, max_num_tokens: int = 64):
    plan = StepPlan(1, segments)
    return InputBuffers(rows, max_num_tokens).fill(plan)


def rows_with(*admissions: Admission, block_size: int = 4) -> Rows:
    rows = Rows(max_num_seqs=8, max_model_len=32, block_size=block_size)
    rows.apply(StepPlan(0, (), admissions=admissions))
    return rows


@pytest.mark.covers("M13")
def test_prompts_of_5_3_4_lie_flat_behind_one_another():
    rows = rows_with(*(admission(i, TEXT[:n], (2 * i, 2 * i + 1)) for i, n in ((1, 5), (2, 3), (3, 4))))
    segments = (segment(1, 0, 5), segment(2, 0, 3), segment(3, 0, 4))
    inputs = inputs_of(rows, *segments)
    assert inputs.query_starts.tolist() == [0, 5, 8, 12]
    assert inputs.token_ids.tolist() == [11, 12, 13, 14, 15, 11, 12, 13, 11, 12, 13, 14]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]
    assert emitting(segments, rows).inputs.tolist() == [4, 7, 11]


@pytest.mark.covers("M14")
def test_table_7_2_gives_the_slots_of_six_tokens():
    inputs = inputs_of(rows_with(admission(1, TEXT[:6], (7, 2))), segment(1, 0, 6))
    assert inputs.slots.tolist() == [28, 29, 30, 31, 8, 9]


@pytest.mark.covers("M15")
def test_four_cached_tokens_of_six_leave_two_to_compute():
    inputs = inputs_of(rows_with(admission(1, TEXT[:6], (7, 2))), segment(1, 4, 2))
    assert inputs.token_ids.tolist() == list(TEXT[4:6])
    assert inputs.positions.tolist() == [4, 5]
    assert inputs.slots.tolist() == [8, 9]
    assert inputs.query_starts.tolist() == [0, 2]
    assert [0, *np.cumsum(inputs.context_lens).tolist()] == [0, 6]
    assert inputs.block_tables.tolist() == [[7, 2]]


@pytest.mark.covers("M16")
def test_the_decode_of_the_seventh_token():
    inputs = inputs_of(rows_with(admission(1, TEXT, (7, 2))), segment(1, 6, 1))
    assert inputs.slots.tolist() == [10]
    assert inputs.context_lens.tolist() == [7]
    assert inputs.positions.tolist() == [6]
    assert inputs.token_ids.tolist() == [17]


def test_chunks_decodes_and_verifications_stand_in_one_step():
    rows = rows_with(
        admission(1, tuple(range(40, 52)), (1, 2, 3)), admission(2, (5, 6), (4,)), admission(3, (7, 8, 9), (5, 6))
    )
    verification = segment(3, 2, 3, num_drafts=2)
    rows.guess(verification, (70, 71))
    segments = (segment(1, 4, 5), segment(2, 1, 1), verification)
    inputs = inputs_of(rows, *segments)
    assert inputs.token_ids.tolist() == [44, 45, 46, 47, 48, 6, 9, 70, 71]
    assert inputs.positions.tolist() == [4, 5, 6, 7, 8, 1, 2, 3, 4]
    assert inputs.slots.tolist() == [8, 9, 10, 11, 12, 17, 22, 23, 24]
    assert inputs.context_lens.tolist() == [9, 2, 5]
    assert inputs.block_tables.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    places = emitting(segments, rows)
    assert places.inputs.tolist() == [4, 5, 6, 7, 8]
    assert places.places.positions.tolist() == [9, 2, 3, 4, 5]
    assert places.places.rows.tolist() == [1, 2, 3, 3, 3]


def test_a_growth_is_seen_by_the_next_step_and_a_table_holds_nothing_but_its_own_blocks():
    rows = rows_with(admission(1, TEXT[:4], (7,)), admission(2, TEXT, (3, 4)))
    rows.append(1, (21,))
    rows.apply(StepPlan(1, (), growths=(Growth(1, (9,)),)))
    inputs = inputs_of(rows, segment(1, 4, 1), segment(2, 6, 1))
    assert inputs.token_ids.tolist() == [21, 17]
    assert inputs.slots.tolist() == [36, 18]
    assert inputs.block_tables.tolist() == [[7, 9], [3, 4]]


def test_the_arrays_are_dense_views_of_the_same_buffers_at_every_step():
    rows = rows_with(admission(1, TEXT, (7, 2)), admission(2, TEXT[:3], (5,)))
    buffers = InputBuffers(rows, 64)
    addresses = set()
    for step, segments in enumerate(((segment(1, 0, 7), segment(2, 0, 3)), (segment(1, 6, 1),), (segment(2, 2, 1),))):
        inputs = buffers.fill(StepPlan(step, segments))
        assert all(array.flags.c_contiguous for array in inputs)
        addresses.add(tuple(array.__array_interface__["data"][0] for array in inputs))
    assert len(addresses) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Segment(9, 0, 1, 6, 1, 0, Emits.TOKEN), "does not hold"),
        (Segment(1, 3, 1, 6, 1, 0, Emits.TOKEN), "does not hold"),
        (Segment(2, 0, 2, 0, 1, 0, Emits.TOKEN), "does not hold"),
        (segment(1, 7, 1), "does not exist"),
        (segment(1, 6, 3, num_drafts=2), "no cache block"),
    ],
)
def test_a_plan_that_contradicts_the_rows_is_refused_before_the_model_runs(wrong, message):
    with pytest.raises(EngineError, match=message):
        inputs_of(rows_with(admission(1, TEXT, (7, 2))), wrong)
