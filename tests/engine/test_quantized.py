"""A quantized checkpoint on the native backend: its weights stay as they are, and mean what they meant."""

import numpy as np
import pytest
from tests.engine.prompts import PROMPTS

from headrace import LLM, SamplingParams

pytest.importorskip("headrace._native", reason="the native kernels were not built")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
TEXT = " ".join(PROMPTS)[:1_500]


@pytest.fixture(scope="module")
def models():
    with LLM("smollm2-135m", max_model_len=1024) as quantized:
        with LLM("smollm2-135m", dtype="float32", max_model_len=1024) as plain:
            yield quantized, plain


def logprobs(llm: LLM) -> np.ndarray:
    """Of the text's own tokens."""
    output = llm.generate(TEXT, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)[0]
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return np.array([entry[token].logprob for token, entry in pairs])


def test_log_probabilities_are_near_those_of_the_dequantized_weights_in_fp32(models):
    quantized, plain = map(logprobs, models)
    assert quantized.size > 300
    assert np.median(np.abs(quantized - plain)) < 0.02
    assert abs(quantized.mean() - plain.mean()) < 0.01
