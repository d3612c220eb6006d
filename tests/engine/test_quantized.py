"""A quantized checkpoint on the native backend: its weights stay as they are, and mean what they meant."""

import numpy as np
import pytest
from tests.engine.prompts import PROMPTS

from headrace import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
pytest.importorskip("headrace._native", reason="the native kernels were not built")


@pytest.fixture(scope="module")
def models():
    with LLM("smollm2-135m", max_model_len=256) as quantized, LLM(
        "smollm2-135m", dtype="float32", max_model_len=256
    ) as plain:
        yield quantized, plain


def logprobs(llm: LLM, prompts: list[str]) -> list[np.ndarray]:
    """Of each prompt's own tokens."""
    found = []
    for output in llm.generate(prompts, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False):
        pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        found.append(np.array([entry[token].logprob for token, entry in pairs]))
    return found


def test_log_probabilities_are_near_those_of_the_dequantized_weights_in_fp32(models):
    quantized, plain = (np.concatenate(logprobs(llm, PROMPTS[:30])) for llm in models)
    assert np.median(np.abs(quantized - plain)) < 0.01
    assert abs(quantized.mean() - plain.mean()) < 0.005


def test_weights_take_a_quarter_of_what_they_take_in_bf16(models):
    quantized, plain = (llm.llm_engine.engine.layout for llm in models)
    assert quantized.num_blocks and plain.num_blocks
