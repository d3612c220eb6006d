"""The same tokens and reasons alone or in a crowd, chunked, cached, preempted, under every prefill policy.

On the default model in fp32. The native backend allows no difference at all. The reference ops do at a shown tie only;
with calls padded to 16 rows on one thread (`fixed_rows`) there is none either, which the tiny model shows bit for bit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.matrix import Case, Tally, compare, run
from tests.engine.prompts import PROMPTS

from headrace import LLM
from headrace.words.outputs import CompletionOutput

NUM_CASES, MAX_TOKENS = 16, 14
SHORT, NUM_SHORT = 20, 10
ALLOWED_TIES = 0 if importlib.util.find_spec("headrace._native") else 3
TINY_BLOCKS: dict[str, Any] = {"num_gpu_blocks_override": 10, "block_size": 4, "max_model_len": 37}
SMALL_POOLS = {
    "all prompts in 15 blocks of 16": (NUM_CASES, {"num_gpu_blocks_override": 16, "max_model_len": 240}),
    "short prompts in 10 blocks of 4": (NUM_SHORT, TINY_BLOCKS),
    "the same, most output goes first, overlap": (
        NUM_SHORT,
        {**TINY_BLOCKS, "victim_policy": "most_output", "async_scheduling": True},
    ),
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.covers("I24", "I25", "D42", "E6", "D29")]


def engine(**options: Any) -> LLM:
    return LLM("smollm2-135m", dtype="float32", **{"max_num_seqs": 16, "max_model_len": 512, **options})


@pytest.fixture(scope="module")
def roomy() -> Iterator[LLM]:
    with engine() as llm:
        yield llm


def cases(llm: LLM, temperature: float) -> list[Case]:
    tokenizer = llm.get_tokenizer()
    prompts = [*PROMPTS[:13], *PROMPTS[46:49]]
    ids = [tuple(tokenizer.encode(prompt, add_special_tokens=False, parse_special=False)) for prompt in prompts]
    return [Case(ids[i], MAX_TOKENS, temperature, seed=1_000 + i) for i in range(NUM_CASES)]


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "seeded"])
def work(request: pytest.FixtureRequest, roomy: LLM) -> tuple[list[Case], list[CompletionOutput]]:
    """The cases, and what each gives alone with a cold cache (the salt of one is nobody else's)."""
    todo = cases(roomy, request.param)
    return todo, [run(roomy, [case])[0] for case in todo]


def check(tally: Tally, num_cases: int = NUM_CASES) -> None:
    assert tally.tokens >= num_cases * MAX_TOKENS * 0.5
    assert tally.ties <= ALLOWED_TIES, f"{tally.ties} ties are too many to be ties"


def test_a_batch_of_sixteen_gives_what_each_gives_alone(roomy, work):
    check(compare(roomy, *work))


@pytest.mark.parametrize("budget", [16, 64])
def test_chunk_budgets_change_nothing(work, budget):
    with engine(max_num_batched_tokens=budget) as llm:
        check(compare(llm, *work))


@pytest.mark.parametrize("policy", ["first", "attempt"])
def test_prefill_policies_change_nothing(work, policy):
    with engine(prefill_policy=policy, max_num_batched_tokens=64) as llm:
        check(compare(llm, *work))


def test_a_cold_and_a_warm_prefix_cache_and_none_give_the_same(work):
    with engine(enable_prefix_caching=False) as llm:
        check(compare(llm, *work))
    with engine() as llm:
        check(compare(llm, *work))
        check(compare(llm, *work))
        assert llm.llm_engine.get_metrics().num_cached_tokens > 300


@pytest.mark.parametrize("pool", SMALL_POOLS)
def test_a_pool_so_small_that_every_run_preempts_three_times_and_more_gives_the_same(work, pool):
    num_cases, options = SMALL_POOLS[pool]
    todo, references = zip(*fitting(*work, num_cases), strict=True)
    with engine(max_num_batched_tokens=64, **options) as llm:
        tally = compare(llm, list(todo), list(references))
        num_preemptions = llm.llm_engine.get_metrics().num_preemptions
    check(tally, num_cases)
    print(f"{pool}: preemptions of each sequence, run by run: {tally.preemptions}")
    assert num_preemptions == sum(map(sum, tally.preemptions)), "each preemption is told to its sequence"
    of_first_run = tally.preemptions[0]
    assert len(of_first_run) == num_cases and sum(of_first_run) >= 3
    if num_cases == NUM_SHORT:
        assert max(of_first_run) >= 2 and sum(of_first_run) >= num_cases, "sequences are preempted again and again"


def fitting(
    todo: list[Case], references: list[CompletionOutput], num_cases: int
) -> list[tuple[Case, CompletionOutput]]:
    """All cases, or the first ones whose prompts are short."""
    longest = SHORT if num_cases == NUM_SHORT else 10**9
    pairs = zip(todo, references, strict=True)
    return [(case, reference) for case, reference in pairs if len(case.prompt_ids) <= longest][:num_cases]


def test_overlap_gives_the_same(work):
    with engine(async_scheduling=True) as llm:
        check(compare(llm, *work))
