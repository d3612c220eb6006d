"""Whole steps with a toy model: whoever else is in the batch, a row gives what it gives alone."""

import math

import numpy as np
import pytest
import torch
from tests.worker.toy import POISON, VOCAB, Toy, Worker, state_of

from headrace.words.errors import EngineError
from headrace.words.params import Pooling, Sampling
from headrace.words.plan import Emits, StepPlan

SEEDED = Sampling(temperature=1.0, top_p=0.95, top_k=40)
KINDS = {
    "greedy": Sampling(temperature=0.0),
    "seeded": SEEDED,
    "everything": Sampling(
        temperature=1.3,
        min_p=0.001,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        min_tokens=5,
        logit_bias=((5, 2.0), (9, -3.0)),
        bad_words=((4,), (7, 8)),
        logprobs=4,
    ),
}


def run_together(seqs: list[Toy], num_tokens: int) -> dict[int, list[int]]:
    """All in one batch from the first step on."""
    worker = Worker(max_num_seqs=len(seqs))
    found = worker.run(*(seq.prefill() for seq in seqs), admissions=tuple(seq.admission() for seq in seqs))
    texts = {seq.seq_id: list(found[seq.seq_id].token_ids) for seq in seqs}
    for n in range(1, num_tokens):
        for seq_id, row in worker.run(*(seq.decode(n) for seq in seqs)).items():
            texts[seq_id] += row.token_ids
    return texts


@pytest.mark.covers("D42", "E6")
@pytest.mark.parametrize("kind", KINDS)
def test_alone_in_a_batch_of_32_and_preempted_give_the_same_tokens(kind):
    seq = Toy(1, (3, 1, 4, 1, 5), KINDS[kind], seed=1)
    alone = Worker().generate(seq, 9)
    crowd = [Toy(i, range(i, 2 * i), SEEDED, seed=i) for i in range(2, 33)]
    assert run_together([seq, *crowd], 9)[1] == alone
    worker = Worker(max_num_seqs=9)
    before = worker.generate(seq, 4)
    again = Toy(1, seq.prompt, seq.sampling, row=6, epoch=1, seed=1)
    chunks = (again.segment(0, 3, Emits.NOTHING), again.segment(3, 6))
    worker.run(chunks[0], retired_rows=(1,), admissions=(again.admission(output=before),))
    text = before + list(worker.run(chunks[1])[1].token_ids)
    while len(text) < 9:
        text += worker.run(again.decode(len(text)))[1].token_ids
    assert text == alone


@pytest.mark.covers("E6")
def test_choices_of_one_request_and_other_seeds_differ_and_a_seed_repeats():
    texts = [
        tuple(Worker().generate(Toy(1, (3, 1, 4), SEEDED, seed=seed, choice=choice), 12))
        for seed, choice in ((1, 0), (1, 1), (2, 0), (1, 0))
    ]
    assert texts[0] == texts[3]
    assert len(set(texts)) == 3


@pytest.mark.covers("D31", "I29")
def test_results_are_addressed_by_sequence_and_epoch_when_a_neighbour_is_void():
    """A verifies two drafts, B ends a prompt, C decodes; A's result is void, B's and C's are what they are alone."""
    sampling = Sampling(temperature=1.0, logprobs=2)
    a, b, c = Toy(1, (9, 8, 7), sampling, epoch=4), Toy(2, (1, 2), sampling), Toy(3, (5, 5, 5, 5), sampling)
    worker = Worker(drafter=Guesses({(9, 8, 7): (10, 11)}))
    worker.run(
        a.segment(0, 2, Emits.NOTHING), c.segment(0, 3, Emits.NOTHING), admissions=(a.admission(), c.admission())
    )
    found = worker.run(a.segment(2, 3, num_drafts=2), b.prefill(), c.segment(3, 1), admissions=(b.admission(),))
    assert [(row.seq_id, row.epoch) for row in found.values()] == [(1, 4), (2, 0), (3, 0)]
    for seq in (b, c):
        alone = Worker().run(seq.prefill(), admissions=(seq.admission(),))[seq.seq_id]
        assert found[seq.seq_id] == alone
        assert alone.logprobs[0].token_ids[0] == alone.token_ids[0]


@pytest.mark.covers("M12")
def test_two_workers_in_one_process_share_nothing():
    seqs = [Toy(1, (3, 1, 4), SEEDED, seed=1), Toy(1, (2, 7, 1), SEEDED, seed=2)]
    alone = [Worker().generate(seq, 6) for seq in seqs]
    workers = [Worker(), Worker()]
    texts: list[list[int]] = [[], []]
    for n in range(6):
        for worker, seq, text in zip(workers, seqs, texts, strict=True):
            deltas = {} if n else {"admissions": (seq.admission(),)}
            text += worker.run(seq.decode(n) if n else seq.prefill(), **deltas)[1].token_ids
    assert texts == alone


@pytest.mark.covers("D17")
def test_chunks_before_the_last_emit_nothing_and_cost_no_logits():
    seq, worker = Toy(1, range(1, 11)), Worker()
    assert worker.run(seq.segment(0, 4, Emits.NOTHING), admissions=(seq.admission(),)) == {}
    assert worker.run(seq.segment(4, 4, Emits.NOTHING)) == {}
    assert worker.model.num_logits == 0
    found = worker.run(seq.segment(8, 2))
    assert found[1].token_ids == Worker().run(seq.prefill(), admissions=(seq.admission(),))[1].token_ids
    assert worker.model.num_logits == 1


def test_a_row_whose_logits_are_not_numbers_fails_alone():
    good, bad = Toy(1, (1, 2, 3), KINDS["everything"], seed=3), Toy(2, (POISON, 5), KINDS["everything"])
    worker = Worker()
    found = worker.run(bad.prefill(), good.prefill(), admissions=(bad.admission(), good.admission()))
    assert "not finite" in (found[2].failure or "")
    assert found[2].token_ids == ()
    text = list(found[1].token_ids)
    for n in range(1, 5):
        text += worker.run(good.decode(n), retired_rows=(2,) if n == 1 else ())[1].token_ids
    assert text == Worker().generate(good, 5)


def test_a_step_planned_before_a_failure_is_known_disturbs_nobody():
    good, bad = Toy(1, (1, 2, 3)), Toy(2, (POISON, 5))
    worker = Worker()
    text = list(worker.run(bad.prefill(), good.prefill(), admissions=(bad.admission(), good.admission()))[1].token_ids)
    found = worker.run(bad.decode(1), good.decode(1))
    text += found[1].token_ids
    assert "not finite" in (found[2].failure or "")
    assert text == Worker().generate(good, 2)


def test_a_row_whose_masks_forbid_everything_fails_alone():
    none = Sampling(temperature=0.0, allowed_token_ids=(4, 5), bad_words=((4,), (5,)))
    good, bad = Toy(1, (1, 2, 3)), Toy(2, (1, 2, 3), none)
    found = Worker().run(bad.prefill(), good.prefill(), admissions=(bad.admission(), good.admission()))
    assert "no token is allowed" in (found[2].failure or "")
    assert found[1].token_ids == Worker().run(good.prefill(), admissions=(good.admission(),))[1].token_ids


@pytest.mark.covers("M23")
def test_blocks_to_be_zeroed_are_zero_before_anyone_reads_them():
    worker = Worker()
    worker.cache[:] = 77
    seq = Toy(1, (1, 2, 3))
    worker.run(seq.prefill(), admissions=(seq.admission(),), zero_blocks=(2, 5))
    assert not worker.cache.reshape(-1, 4, 2)[[2, 5]].any()
    assert (worker.cache.reshape(-1, 4, 2)[[1, 3, 4, 6]] == 77).all()


def test_hidden_states_are_given_as_the_last_or_as_a_sum_over_chunks():
    text = (1, 2, 3, 4, 5)
    states = np.stack([state_of(text[: i + 1]).astype(np.float32) for i in range(5)])
    last, mean = Toy(1, text, pooling=Pooling("last")), Toy(2, text, pooling=Pooling("mean"))
    worker = Worker()
    found = worker.run(
        last.prefill(Emits.HIDDEN), mean.segment(0, 3, Emits.HIDDEN), admissions=(last.admission(), mean.admission())
    )
    assert np.allclose(found[1].hidden, states[4], atol=1e-7)
    rest = worker.run(mean.segment(3, 2, Emits.HIDDEN))
    assert np.allclose(np.add(found[2].hidden, rest[2].hidden), states.sum(0), atol=1e-6)
    bad = Toy(3, (POISON,), pooling=Pooling("mean"))
    assert "not finite" in (worker.run(bad.prefill(Emits.HIDDEN), admissions=(bad.admission(),))[3].failure or "")


@pytest.mark.covers("E7")
@pytest.mark.parametrize("chunk", [1, 3, 150])
def test_prompt_logprobs_are_right_in_any_chunks_and_made_in_tiles(chunk):
    text = tuple(int(i) for i in np.random.default_rng(0).integers(0, 60, 150))
    seq = Toy(0, text, Sampling(temperature=0.0, prompt_logprobs=2, max_tokens=4), row=1)
    worker = Worker(max_num_seqs=1, max_model_len=160)
    admission = seq.admission()._replace(block_ids=tuple(range(1, 44)))
    entries, deltas = [], {"admissions": (admission,)}
    for start in range(0, 150, chunk):
        found = worker.run(seq.segment(start, min(chunk, 150 - start), Emits.LOGPROBS), **deltas)[0]
        assert bool(found.token_ids) == (start + chunk >= 150)
        entries += found.prompt_logprobs
        deltas = {}
    assert len(entries) == 149
    assert worker.model.largest_tile <= 64
    for p in (1, 77, 149):
        logits = worker.model.logits(hidden_of(text[:p])).double().log_softmax(-1)[0]
        assert entries[p - 1].token_ids[0] == text[p]
        assert math.isclose(entries[p - 1].logprobs[0], logits[text[p]], abs_tol=1e-5)
        assert list(entries[p - 1].token_ids[1:]) == logits.topk(2).indices.tolist()
        assert entries[p - 1].rank == 1 + int((logits > logits[text[p]]).sum())


def hidden_of(text: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(state_of(text).astype(np.float32)[None])


def test_a_prompt_that_is_only_scored_gives_no_token():
    seq = Toy(1, (1, 2, 3), Sampling(temperature=0.0, prompt_logprobs=0, max_tokens=0))
    found = Worker().run(seq.prefill(Emits.LOGPROBS), admissions=(seq.admission(),))[1]
    assert (found.token_ids, len(found.prompt_logprobs)) == ((), 2)


def test_a_step_that_was_not_computed_cannot_be_sampled():
    worker = Worker()
    with pytest.raises(EngineError, match="not computed"):
        worker.runner.sample(StepPlan(1, ()))


class Guesses:
    """A drafter that knows what follows some texts, and guesses token 0 otherwise."""

    def __init__(self, known: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        self.known = known

    def propose(self, segment, text):
        guess = self.known.get(tuple(text.tolist()), ())
        return (guess + (0,) * segment.num_drafts)[: segment.num_drafts]


@pytest.mark.covers("I20")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_drafts_save_steps_and_change_no_token_and_no_logprob(kind, num_right):
    seq = Toy(1, (3, 1, 4, 1, 5), KINDS[kind], seed=1)
    plain = Worker()
    rows = [plain.run(seq.prefill(), admissions=(seq.admission(),))[1]]
    rows += [plain.run(seq.decode(n))[1] for n in range(1, 12)]
    text = tuple(token for row in rows for token in row.token_ids)
    entries = tuple(entry for row in rows for entry in row.logprobs)
    false = [(token + 1) % VOCAB for token in text]
    guesses = {
        (*seq.prompt, *text[:n]): (*text[n : n + num_right], *false[n + num_right : n + 3]) for n in range(1, 12)
    }
    worker = Worker(drafter=Guesses(guesses))
    found = worker.run(seq.prefill(), admissions=(seq.admission(),))[1]
    tokens, logprobs, accepted = found.token_ids, found.logprobs, []
    while len(tokens) <= 8:
        found = worker.run(seq.decode(len(tokens), num_drafts=3))[1]
        assert len(found.token_ids) == found.num_accepted + 1
        tokens, logprobs = tokens + found.token_ids, logprobs + found.logprobs
        accepted.append(found.num_accepted)
    assert tokens == text[: len(tokens)]
    assert logprobs == entries[: len(logprobs)]
    assert set(accepted) == {num_right}


def test_a_draft_that_breaks_the_model_fails_nobody():
    seq = Toy(1, (1, 2, 3))
    expected = Worker().generate(seq, 2)
    worker = Worker(drafter=Guesses({(1, 2, 3, expected[0]): (POISON, POISON)}))
    worker.run(seq.prefill(), admissions=(seq.admission(),))
    found = worker.run(seq.decode(1, num_drafts=2))[1]
    assert (found.failure, found.token_ids, found.num_accepted) == (None, (expected[1],), 0)


@pytest.mark.covers("D39")
def test_forced_tokens_replace_the_draws_and_bring_their_own_logprobs():
    sampling = Sampling(temperature=1.0, forced_tokens=(5, 6, 7), logprobs=0, max_tokens=5)
    seq, worker = Toy(1, (1, 2), sampling, seed=4), Worker()
    rows = [worker.run(seq.prefill(), admissions=(seq.admission(),))[1]]
    rows += [worker.run(seq.decode(n))[1] for n in range(1, 5)]
    assert [row.token_ids[0] for row in rows[:3]] == [5, 6, 7]
    for n, row in enumerate(rows):
        before = (1, 2, 5, 6, 7, *rows[3].token_ids)[: 2 + n]
        logits = worker.model.logits(hidden_of(before)).double().log_softmax(-1)[0]
        assert row.logprobs[0].token_ids == row.token_ids
        assert math.isclose(row.logprobs[0].logprobs[0], logits[row.token_ids[0]], abs_tol=1e-5)
    free = Toy(1, (1, 2, 5, 6, 7), Sampling(temperature=1.0), seed=4)
    assert Worker().run(free.prefill(), admissions=(free.admission(),))[1].token_ids == rows[3].token_ids


def test_a_grammar_mask_goes_to_the_sequence_it_names():
    words = np.zeros((1, -(-VOCAB // 32)), np.uint32)
    words[0, 1] = 1 << 9
    first, second = Toy(1, (1, 2, 3)), Toy(2, (1, 2, 3))
    admissions = (first.admission(), second.admission())
    found = Worker().run(first.prefill(), second.prefill(), admissions=admissions, masks={2: words})
    free = Worker().run(first.prefill(), second.prefill(), admissions=admissions)
    assert found[2].token_ids == (41,)
    assert found[1] == free[1] and free[2].token_ids == free[1].token_ids
