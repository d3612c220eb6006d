"""The whole worker with a tiny real Llama under the real scheduler, against transformers and against itself alone."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from tests.models import oracle
from tests.models.driver import DictSource

from headrace.comm import SoloComm
from headrace.executor.local import LocalExecutor
from headrace.models.registry import family
from headrace.ops.reference import ReferenceOps
from headrace.ops.stepwise import Stepwise
from headrace.schedule.scheduler import Scheduler
from headrace.words.config import SchedulerConfig
from headrace.words.params import Pooling, Request, Sampling
from headrace.words.plan import CacheLayout, TokenEvent
from headrace.worker.memory import make_caches
from headrace.worker.rows import Rows
from headrace.worker.runner import Runner

MAX_LEN, BLOCK, TOKENS = 32, 4, 10
PROMPTS = ((5, 17, 3, 88, 41), (9,), (60, 2, 2, 71, 33, 12, 54, 8, 20, 95, 1), (5, 17, 3, 88, 7, 7, 7))


@functools.cache
def reference() -> Any:
    return oracle.make()


@functools.cache
def weights() -> dict[str, np.ndarray]:
    return oracle.arrays(reference())


def run(requests: list[Request], num_blocks: int = 64, budget: int = 64, overlap: bool = False) -> dict[int, list]:
    """Events of each request, under a scheduler with this pool and token budget."""
    ops = ReferenceOps(fixed_rows=16)
    config = oracle.config()
    model = family(config.architecture).build(config, DictSource(weights()), ops, SoloComm(), MAX_LEN)
    limits = SchedulerConfig(MAX_LEN, max_num_seqs=4, max_num_batched_tokens=budget)
    layout = CacheLayout(num_blocks, BLOCK)
    rows = Rows(limits.max_num_seqs, MAX_LEN, BLOCK)
    caches = make_caches(ops, model.cache_specs(), layout)
    executor = LocalExecutor(Runner(Stepwise(model, ops), ops, rows, caches, budget))
    scheduler = Scheduler(limits, layout)
    for request in requests:
        scheduler.add(request)
    found: dict[int, list[TokenEvent]] = {request.request_id: [] for request in requests}
    for event in events_of(scheduler, executor, overlap):
        found[event.request_id].append(event)
    return found


def events_of(scheduler: Scheduler, executor: LocalExecutor, overlap: bool) -> list[TokenEvent]:
    events, previous = [], None
    while scheduler.has_unfinished() or previous:
        plan = scheduler.schedule()
        if not plan.is_empty:
            executor.forward(plan)
        if overlap:
            events += scheduler.commit(previous.result() if previous else None)
            previous = None if plan.is_empty else executor.sample(plan)
        else:
            events += scheduler.commit(None if plan.is_empty else executor.sample(plan).result())
    return events


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def requests(**params: Any) -> list[Request]:
    sampling = Sampling(max_tokens=TOKENS, ignore_eos=True, **params)
    return [Request(i, str(i), prompt, sampling, seed=i) for i, prompt in enumerate(PROMPTS, 1)]


@pytest.mark.parametrize("options", [{}, {"budget": 5}, {"num_blocks": 9}, {"overlap": True}])
def test_greedy_tokens_are_those_of_transformers(options):
    asked = requests(temperature=0.0)
    for request, events in zip(asked, run(asked, **options).values(), strict=True):
        text = [*request.prompt_ids, *tokens(events)]
        assert len(text) == len(request.prompt_ids) + TOKENS
        best = oracle.logits(reference(), text[:-1]).argmax(-1)
        assert text[len(request.prompt_ids) :] == best[len(request.prompt_ids) - 1 :].tolist()


SEEDED = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2, "logprobs": 3}


@pytest.mark.covers("D42", "I25")
@pytest.mark.parametrize("options", [{"budget": 5}, {"num_blocks": 9}, {"overlap": True}])
def test_seeded_tokens_and_logprobs_are_the_same_bits_alone_and_in_a_crowd(options):
    crowd = run(requests(**SEEDED), **options)
    if "num_blocks" in options:
        assert sum(events[-1].num_preemptions for events in crowd.values()) >= 2
    for request in requests(**SEEDED):
        alone = run([request])[request.request_id]
        together = crowd[request.request_id]
        assert tokens(together) == tokens(alone)
        assert [e for event in together for e in event.logprobs] == [e for event in alone for e in event.logprobs]


@pytest.mark.covers("E7")
@pytest.mark.parametrize("budget", [3, 64])
def test_prompt_logprobs_are_those_of_transformers(budget):
    wanted = Sampling(temperature=0.0, prompt_logprobs=2, max_tokens=0)
    found = run([Request(i, str(i), prompt, wanted) for i, prompt in enumerate(PROMPTS)], budget=budget)
    for prompt, events in zip(PROMPTS, found.values(), strict=True):
        entries = [entry for event in events for entry in event.prompt_logprobs]
        true = np.log(np.exp(logits := oracle.logits(reference(), list(prompt)).astype(np.float64)).sum(-1))
        assert [entry.token_ids[0] for entry in entries] == list(prompt[1:])
        for p, entry in enumerate(entries):
            assert math.isclose(entry.logprobs[0], logits[p, prompt[p + 1]] - true[p], abs_tol=1e-4)


def test_an_embedding_is_the_last_normed_hidden_state_or_their_mean():
    import torch

    kinds = {1: "last", 2: "mean"}
    found = run([Request(i, str(i), PROMPTS[2], pooling=Pooling(kind)) for i, kind in kinds.items()], budget=4)
    with torch.inference_mode():
        states = reference().model(torch.tensor([PROMPTS[2]])).last_hidden_state[0].numpy()
    assert np.allclose(found[1][-1].hidden, states[-1], atol=1e-4)
    assert np.allclose(found[2][-1].hidden, states.mean(0), atol=1e-4)
