"""On the native backend no bit depends on company: tokens, reasons and log-probabilities, for weights in fp32, in bf16
and kept as integers, for keys and values in int8 too, with 1 and 2 threads, with every free block poisoned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine import tiny
from tests.engine.prompts import PROMPTS

from headrace import LLM, SamplingParams
from headrace.words.outputs import CompletionOutput

pytest.importorskip("headrace._native", reason="the native kernels were not built")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200), pytest.mark.covers("I24", "I25", "D42", "E6", "E7")]
NUM_CASES, MAX_TOKENS = 8, 12
LIMITS = {"max_num_seqs": 16, "max_model_len": 112}
VARIANTS: dict[str, dict[str, Any]] = {
    "in one batch": {},
    "in chunks of 16": {"max_num_batched_tokens": 16},
    "in chunks of 64, prompts first": {"max_num_batched_tokens": 64, "prefill_policy": "first"},
    "at attempt points": {"prefill_policy": "attempt", "max_num_batched_tokens": 64},
    "without a prefix cache": {"enable_prefix_caching": False},
    "preempted": {"num_gpu_blocks_override": 29, "block_size": 4},
    "preempted and overlapped": {"num_gpu_blocks_override": 10, "async_scheduling": True},
    "by one thread": {"num_threads": 1},
    "by two threads": {"num_threads": 2},
    "in blocks of 32": {"block_size": 32},
    "in blocks of 4": {"block_size": 4},
}
TINY: dict[str, dict[str, Any]] = {
    "tiny bf16": {"dtype": "bfloat16"},
    "tiny fp32": {"dtype": "float32"},
    "tiny bf16, int8 cache": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "tiny fp32, int8 cache": {"dtype": "float32", "kv_cache_dtype": "int8"},
    "tiny int8": {"quantization": "int8"},
    "tiny int4": {"quantization": "int4"},
}
WEIGHTS: dict[str, dict[str, Any]] = {"blocks of int4": {}, **TINY}


def bits(output: CompletionOutput) -> tuple[Any, ...]:
    """All that a continuation says, numbers to the bit."""
    logprobs = [{i: (p.logprob.hex(), p.rank) for i, p in entry.items()} for entry in output.logprobs or []]
    return tuple(output.token_ids), output.finish_reason, output.stop_reason, logprobs


class Work:
    """Prompts for one kind of weights; half of them greedy, half sampled with a seed, all with alternatives."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.options = {**WEIGHTS[kind], **LIMITS}
        self.model = str(tiny.write(folder / kind.replace(" ", "-"))) if kind in TINY else "smollm2-135m"
        self.prompts = [PROMPTS[i][:40] for i in range(NUM_CASES)]
        self.params = [
            SamplingParams(
                temperature=0.9 * (i % 2), top_p=0.95, top_k=40, seed=i, max_tokens=MAX_TOKENS, logprobs=3,
                repetition_penalty=1.1 if i % 3 == 0 else 1.0, ignore_eos=kind in TINY,
            )
            for i in range(NUM_CASES)
        ]  # fmt: skip
        with self.engine() as llm:
            self.alone = [bits(self.run(llm, [i])[0]) for i in range(NUM_CASES)]

    def engine(self, **options: Any) -> LLM:
        return LLM(self.model, **{**self.options, **options})

    def run(self, llm: LLM, which: list[int]) -> list[CompletionOutput]:
        prompts, params = [self.prompts[i] for i in which], [self.params[i] for i in which]
        return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module", params=WEIGHTS)
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    yield Work(request.param, tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_bit_is_what_it_is_alone(work, variant):
    with work.engine(**VARIANTS[variant]) as llm:
        everything = list(range(NUM_CASES))
        first = [bits(output) for output in work.run(llm, everything)]
        warm = [bits(output) for output in work.run(llm, everything[::-1])][::-1]
        num_preemptions = llm.llm_engine.get_metrics().num_preemptions
    assert first == work.alone
    assert warm == work.alone
    assert num_preemptions >= (3 if variant.startswith("preempted") else 0)


@pytest.mark.parametrize("kind", TINY)
def test_every_instruction_set_gives_the_same_bits(kind, tmp_path, monkeypatch):
    from headrace import _native

    work = Work(kind, tmp_path)
    for isa in _native.isas():
        monkeypatch.setenv("HEADRACE_ISA", isa)
        for threads in (1, 2):
            with work.engine(num_threads=threads) as llm:
                assert [bits(output) for output in work.run(llm, list(range(NUM_CASES)))] == work.alone, (isa, threads)


def test_poisoned_free_blocks_reach_nobody(work):
    with work.engine() as llm:
        for cache in llm.llm_engine.engine.core.executor._runner._caches:
            cache.fill(0xFF)
        assert [bits(output) for output in work.run(llm, list(range(NUM_CASES)))] == work.alone
