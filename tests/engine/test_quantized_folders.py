"""Folders in packed formats, and matrices rounded at load: the native backend beside the reference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine import tiny

from headrace import LLM, SamplingParams
from headrace.words.errors import ConfigError

pytest.importorskip("headrace._native", reason="the native kernels were not built")
PROMPT = {"prompt_token_ids": [256, *range(40, 120, 2), *range(3, 60, 3)]}
LIMITS = {"max_model_len": 96, "max_num_seqs": 2}
EXPORTS = ("awq", "gptq of 8 bits, asymmetric, by rows", "gptq in another order", "packed int4", "int8 by rows", "fp8")


def logprobs(model: str, **options) -> np.ndarray:
    """Of the prompt's own tokens and the likeliest others."""
    with LLM(model, **LIMITS, **options) as llm:
        output = llm.generate(PROMPT, SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)[0]
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return np.array([entry[token].logprob for token, entry in pairs])


def assert_near(model: str, **options) -> None:
    """Native bfloat16 with integers, native fp32 and the reference in fp32 say the same of the same integers."""
    reference = logprobs(model, dtype="float32", backend="reference", **options)
    in_fp32 = logprobs(model, dtype="float32", **options)
    as_decided = logprobs(model, **options)
    assert reference.size == 59 and reference.std() > 2
    spread = np.linalg.norm(reference - reference.mean())
    assert np.linalg.norm(in_fp32 - reference) < 1e-4 * spread
    assert np.linalg.norm(as_decided - reference) < 0.06 * spread


@pytest.mark.parametrize("name", EXPORTS)
def test_a_quantized_folder_says_on_the_native_backend_what_it_means(tmp_path, name):
    pytest.importorskip("torch")
    pytest.importorskip("auto_round", reason="auto-round is not installed")
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from tests.load import exporters

    exporters.write(tmp_path, exporters.export_of(name))
    assert_near(str(tmp_path))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_matrices_rounded_at_load_say_on_the_native_backend_what_they_mean(tmp_path, quantization):
    pytest.importorskip("torch")
    model = str(tiny.write(tmp_path))
    assert_near(model, quantization=quantization)
    assert not np.array_equal(logprobs(model), logprobs(model, quantization=quantization))


def test_what_was_asked_for_is_told(tmp_path):
    model = str(tiny.write(tmp_path))
    with LLM(model, quantization="int8", **LIMITS) as llm:
        resolved = llm.llm_engine.engine.resolved
    assert (resolved.quantization, resolved.dtype) == ("int8", "bfloat16")


def test_a_file_that_is_quantized_is_not_quantized_again():
    with pytest.raises(ConfigError, match=r"^quantization: the checkpoint is quantized already \(Q4_1\), got 'int8'"):
        LLM("smollm2-135m", quantization="int8", **LIMITS)
