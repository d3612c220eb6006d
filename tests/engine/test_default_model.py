"""The default model against transformers, in fp32 on the same dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.oracle import load
from tests.engine.prompts import PROMPTS

from headrace import LLM, SamplingParams
from headrace.load.hub import resolve_source

torch = pytest.importorskip("torch")
TIE = 1e-4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def oracle() -> Any:
    return load(resolve_source("smollm2-135m", None))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", dtype="float32", max_model_len=1024, max_num_seqs=50) as llm:
        yield llm


def test_fifty_prompts_of_64_greedy_tokens_equal_transformers(llm, oracle):
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    ties = 0
    for output in outputs:
        ids = list(output.outputs[0].token_ids)
        assert len(ids) == 64
        with torch.inference_mode():
            logits = oracle(torch.tensor([[*output.prompt_token_ids, *ids]])).logits[0]
        start = len(output.prompt_token_ids) - 1
        for i, token in enumerate(ids):
            best = torch.topk(logits[start + i], 2)
            if int(best.indices[0]) != token:
                gap = float(best.values[0] - logits[start + i, token])
                assert gap < TIE, f"token {i} of {output.prompt!r}: {token} is {gap} below transformers' best"
                ties += 1
    print(f"{len(outputs)} prompts, {64 * len(outputs)} tokens, {ties} ties")


def test_prompt_logprobs_equal_transformers(llm, oracle):
    output = llm.generate(
        [PROMPTS[46]], SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0), use_tqdm=False
    )[0]
    ids = output.prompt_token_ids
    with torch.inference_mode():
        logprobs = torch.log_softmax(oracle(torch.tensor([ids])).logits[0].float(), -1)
    assert output.prompt_logprobs[0] is None
    for i, entry in enumerate(output.prompt_logprobs[1:], start=1):
        assert abs(entry[ids[i]].logprob - float(logprobs[i - 1, ids[i]])) < 2e-3


def test_the_tokenizer_agrees_with_llama_cpp_through_the_engine(llm, shared_data: Path):
    cases = json.loads((shared_data / "tokens-smollm2.json").read_text())["plain"]
    tokenizer = llm.get_tokenizer()
    for case in cases[:50]:
        text, ids = (case["text"], case["ids"]) if isinstance(case, dict) else case
        assert list(tokenizer.encode(text, add_special_tokens=False, parse_special=False)) == ids
