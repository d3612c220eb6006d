"""The default model with keys and values in int8: close to itself with those in bfloat16, in half the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace import LLM, SamplingParams

pytest.importorskip("headrace._native", reason="the native kernels were not built")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
CACHE_BYTES = 24 << 20
NUM_CHARS = 1_200


def measured(kv_cache_dtype: str, text: str) -> tuple[np.ndarray, int]:
    """Log-probabilities of a text's tokens, and how many tokens the cache holds."""
    sizes = {"kv_cache_memory_bytes": CACHE_BYTES, "max_model_len": 512}
    with LLM("smollm2-135m", kv_cache_dtype=kv_cache_dtype, **sizes) as llm:
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        output = llm.generate([text], params, use_tqdm=False)[0]
        found = [next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:]]
        return np.array(found), llm.llm_engine.engine.layout.capacity_tokens


def test_a_text_is_as_likely_and_twice_the_tokens_fit():
    text = (Path(__file__).parents[2] / "LICENSE").read_text()[:NUM_CHARS]
    exact, in_bfloat16 = measured("bfloat16", text)
    coded, in_int8 = measured("int8", text)
    shift, spread = float((coded - exact).mean()), float(np.abs(coded - exact).mean())
    print(f"{len(exact)} tokens, {-exact.mean():.4f} nats each; int8: {-shift:+.5f}, off by {spread:.4f} on average")
    assert 0 < spread < 0.05 and abs(shift) < 0.01
    assert in_int8 / in_bfloat16 == pytest.approx(128 / 68, rel=0.02)
