"""Compares a run with a reference run: the same tokens, or a shown tie behind which it goes on teacher-forced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headrace import LLM, SamplingParams
from headrace.ops import draws
from headrace.words.outputs import CompletionOutput

TIE = 1e-4


class Case(NamedTuple):
    """One prompt with the way it is continued."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int

    def params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature, seed=self.seed, max_tokens=max_tokens, logprobs=20, top_k=20
        )


@dataclass
class Tally:
    """What a comparison saw."""

    tokens: int = 0
    ties: int = 0
    preemptions: list[list[int]] = field(default_factory=list)
    """Of each run, those of each sequence."""
    cached_tokens: int = 0


def run(llm: LLM, cases: list[Case], prefixes: list[list[int]] | None = None) -> list[CompletionOutput]:
    """Continues each case behind the tokens that are settled already."""
    settled = prefixes or [[] for _ in cases]
    prompts = [{"prompt_token_ids": [*case.prompt_ids, *done]} for case, done in zip(cases, settled, strict=True)]
    params = [case.params(case.max_tokens - len(done)) for case, done in zip(cases, settled, strict=True)]
    return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]


def score_gap(case: Case, reference: CompletionOutput, index: int, other: int) -> float:
    """By how much the reference's token beat `other` in the comparison that decided: logits, or keyed noise on top."""
    alternatives = reference.logprobs[index]
    chosen = reference.token_ids[index]
    gap = alternatives[chosen].logprob - alternatives[other].logprob
    if case.temperature == 0:
        return abs(gap)
    position = len(case.prompt_ids) + index
    low, high = draws.keys(np.array([case.seed], np.uint64), np.zeros(1, np.int32), np.array([position], np.int32))
    noise = draws.noise(np.array([chosen, other], np.int32), low[0], high[0])
    return abs(gap / case.temperature + float(noise[0] - noise[1]))


def compare(llm: LLM, cases: list[Case], references: list[CompletionOutput], together: bool = True) -> Tally:
    """Runs the cases (all together, or each alone) and holds every token against the reference."""
    tally = Tally()
    groups = [list(range(len(cases)))] if together else [[i] for i in range(len(cases))]
    for group in groups:
        _compare_group(llm, [cases[i] for i in group], [references[i] for i in group], tally)
    return tally


def _compare_group(llm: LLM, cases: list[Case], references: list[CompletionOutput], tally: Tally) -> None:
    settled: list[list[int]] = [[] for _ in cases]
    open_cases = list(range(len(cases)))
    while open_cases:
        outputs = run(llm, [cases[i] for i in open_cases], [settled[i] for i in open_cases])
        tally.preemptions.append([output.num_preemptions for output in outputs])
        still_open = []
        for i, output in zip(open_cases, outputs, strict=True):
            if not _take(cases[i], references[i], settled[i], output, tally):
                still_open.append(i)
        open_cases = still_open


def _take(case: Case, reference: CompletionOutput, settled: list[int], output: CompletionOutput, tally: Tally) -> bool:
    """Appends what agrees; False when a tie was settled and the rest must be run again."""
    for token in output.token_ids:
        index = len(settled)
        expected = reference.token_ids[index]
        settled.append(expected)
        tally.tokens += 1
        if token != expected:
            gap = score_gap(case, reference, index, token)
            assert gap < TIE, f"token {index} of {case.prompt_ids[:5]}… is {token}, not {expected}, and no tie: {gap}"
            tally.ties += 1
            return len(settled) == len(reference.token_ids)
    assert len(settled) == len(reference.token_ids), "another length"
    assert (output.finish_reason, output.stop_reason) == (reference.finish_reason, reference.stop_reason)
    return True
