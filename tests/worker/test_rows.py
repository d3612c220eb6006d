"""Rows are set by the plan's deltas alone, and a new owner sees nothing of the last."""

import tracemalloc

import numpy as np
import pytest
from tests.worker.toy import Toy

from headrace.words.errors import EngineError
from headrace.words.params import Pooling, Sampling
from headrace.words.plan import Growth, StepPlan
from headrace.worker.rows import Rows

FULL = Sampling(
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    min_p=0.1,
    frequency_penalty=0.5,
    logprobs=3,
    forced_tokens=(1, 2),
    min_tokens=4,
    logit_bias=((3, 1.0),),
)


def new_rows(**options: object) -> Rows:
    return Rows(max_num_seqs=4, max_model_len=64, block_size=4, eos_token_ids=(0,), max_num_drafts=3, **options)


def state(rows: Rows, row: int) -> list[object]:
    """Everything that the worker holds of a row."""
    values = [value for part in (rows, rows.sampling) for value in vars(part).values()]
    columns = [value for value in values if isinstance(value, np.ndarray | list) and len(value) == 5]
    found: list[object] = [np.asarray(column[row]).tolist() for column in columns]
    return [*found, *(penalty[row] for penalty in rows.sampling._penalties)]


def apply(rows: Rows, **deltas: object) -> None:
    rows.apply(StepPlan(1, (), **deltas))


@pytest.mark.covers("I10")
@pytest.mark.parametrize("pooling", [None, Pooling("mean")])
def test_a_retired_row_is_as_it_was_at_start(pooling):
    rows = new_rows()
    at_start = state(rows, 2)
    seq = Toy(7, range(5, 17), FULL, row=2, epoch=3, seed=2**63, choice=1, pooling=pooling)
    apply(rows, admissions=(seq.admission(),))
    rows.guess(seq.decode(0, num_drafts=3), (8, 8, 8))
    rows.append(2, (99,))
    assert state(rows, 2) != at_start
    apply(rows, retired_rows=(2,))
    assert state(rows, 2) == at_start


@pytest.mark.covers("I10")
def test_an_admission_to_a_row_that_was_never_retired_takes_nothing_over():
    """A failed step may have left anything; the next admission is the whole truth."""
    fresh, used = new_rows(), new_rows()
    apply(used, admissions=(Toy(7, range(5, 30), FULL, row=2, seed=5).admission(),))
    used.append(2, (99,))
    seq = Toy(8, (1, 2, 3), row=2, epoch=1)
    for rows in (fresh, used):
        apply(rows, admissions=(seq.admission(output=(4,)),))
    assert state(fresh, 2) == state(used, 2)
    assert state(fresh, 1) == state(used, 1)


def test_a_plan_retires_before_it_admits_and_admits_before_it_grows():
    rows = new_rows()
    old, new = Toy(1, (9, 9), row=3), Toy(2, (4, 5, 6), row=3)
    apply(rows, admissions=(old.admission(),))
    apply(rows, retired_rows=(3,), admissions=(new.admission(),), growths=(Growth(3, (190,)),))
    assert rows.tokens[3, :4].tolist() == [4, 5, 6, 0]
    assert (rows.seq_ids[3], rows.lengths[3], rows.num_blocks[3]) == (2, 3, 17)
    assert rows.block_tables[3, 15:17].tolist() == [49, 190]


def test_sampled_tokens_of_a_preempted_sequence_count_as_output_again():
    sampling = Sampling(temperature=0.0, frequency_penalty=1.0)
    rows = new_rows()
    seq = Toy(1, (5, 6), sampling, row=1)
    apply(rows, admissions=(seq.admission(output=(6, 6, 7)),))
    edits = rows.sampling.edits[1]
    assert edits is not None and edits.counts is not None
    rows.append(1, (7,))
    ids, counts = edits.counts.entries()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {6: 2, 7: 2}


@pytest.mark.covers("D7")
def test_an_admission_reserves_nothing_for_the_tokens_that_may_come():
    rows = new_rows()
    tracemalloc.start()
    apply(rows, admissions=(Toy(1, range(40), Sampling(max_tokens=2**31, presence_penalty=1.0)).admission(),))
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown_bytes < 100_000


def test_rows_take_no_memory_before_they_are_used():
    """2,049 rows of 131,072 tokens are a gigabyte that is never touched; huge pages round what is."""
    resident = resident_bytes()
    rows = Rows(max_num_seqs=2_048, max_model_len=131_072, block_size=16)
    apply(rows, admissions=(Toy(1, range(100)).admission(),))
    assert resident_bytes() - resident < 20_000_000


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4_096


def test_an_admission_longer_than_a_row_is_our_error():
    with pytest.raises(EngineError, match="100 tokens"):
        apply(new_rows(), admissions=(Toy(1, range(100)).admission(),))
