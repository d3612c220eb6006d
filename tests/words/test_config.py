"""What was asked, what the checkpoint says, what is decided."""

import dataclasses
from pathlib import Path

import pytest

from headrace.words.config import (
    ACCEPTED,
    DEFAULT_MODEL,
    EngineConfig,
    Hardware,
    ModelConfig,
    RopeConfig,
    engine_config,
    resolve,
)
from headrace.words.errors import ConfigError

MODEL = ModelConfig("Toy", 100, 8, 16, 2, 2, 1, 4, 2_048, 1e-5, RopeConfig(), dtype="float16", eos_token_ids=(2, 5))
MACHINE = Hardware(num_cores=3, memory_limit_bytes=1 << 33, memory_available_bytes=1 << 32)


def decided(**options):
    return resolve(engine_config(**options), MODEL, MACHINE)


@pytest.mark.covers("D8")
def test_an_engine_plays_the_normal_role_unless_asked_otherwise():
    assert EngineConfig().role == "normal"
    with pytest.raises(ConfigError, match="role"):
        decided(role="prefill")


@pytest.mark.covers("D28")
def test_recompute_is_the_default_everywhere():
    assert EngineConfig().preemption_policy == "recompute" == decided().scheduler.preemption_policy


def test_what_is_left_open_is_decided_and_nothing_else_changes():
    ours = decided()
    assert (ours.model, ours.dtype, ours.block_size, ours.num_threads) == (DEFAULT_MODEL, "float32", 16, 3)
    assert ours.scheduler.max_model_len == 2_048 and not ours.max_model_len_is_explicit
    assert ours.scheduler.eos_token_ids == {2, 5}
    assert decided() == ours
    chosen = decided(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, dtype="bfloat16", num_threads=1)
    assert chosen.max_model_len_is_explicit and (chosen.dtype, chosen.num_threads) == ("bfloat16", 1)
    limits = chosen.scheduler
    assert (limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens) == (64, 4, 32)


def test_what_is_rounded_at_load_runs_in_bfloat16_unless_somebody_asks_for_more():
    assert (decided().quantization, decided(quantization="int4").quantization) == (None, "int4")
    assert decided(quantization="int8").dtype == decided(quantization="int8", dtype="auto").dtype == "bfloat16"
    assert decided(quantization="int8", dtype="float32").dtype == "float32"


def test_what_is_quantized_is_not_quantized_again():
    packed = dataclasses.replace(MODEL, quantization="awq", dtype="bfloat16")
    as_it_is = resolve(engine_config(quantization="awq"), packed, MACHINE)
    assert as_it_is == resolve(engine_config(), packed, MACHINE) and as_it_is.quantization is None
    with pytest.raises(ConfigError, match=r"^quantization: the checkpoint is quantized already \(awq\), got 'int8'"):
        resolve(engine_config(quantization="int8"), packed, MACHINE)
    with pytest.raises(ConfigError, match="^quantization: must be one of int8, int4, got 'gptq'"):
        resolve(engine_config(quantization="gptq"), packed, MACHINE)


def test_an_unknown_option_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigError, match="max_num_seq: unknown engine option; did you mean 'max_num_seqs'"):
        engine_config(max_num_seq=4)
    with pytest.raises(ConfigError, match="unknown engine option$"):
        engine_config(xyz=4)


@pytest.mark.parametrize("name", ACCEPTED)
def test_vllms_keywords_pass_when_they_ask_for_nothing(name):
    assert engine_config(**{name: ACCEPTED[name]}) == EngineConfig()


def test_a_path_is_as_good_as_its_text():
    assert engine_config(model=Path("folder"), tokenizer=Path("other")).model == Path("folder")


@pytest.mark.parametrize("option", [{"tensor_parallel_size": 2}, {"trust_remote_code": True}, {"load_format": "dummy"}])
def test_vllms_keywords_that_ask_for_what_is_not_built_are_refused(option):
    with pytest.raises(ConfigError, match="is not supported; leave it out or pass"):
        engine_config(**option)


@pytest.mark.parametrize(
    "option",
    [
        {"max_model_len": 0}, {"max_model_len": -1}, {"max_model_len": 1.5}, {"max_model_len": True},
        {"max_model_len": 4_096}, {"max_num_seqs": 0}, {"kv_cache_memory_bytes": -5}, {"queue_timeout_s": 0},
        {"queue_timeout_s": float("nan")}, {"request_timeout_s": float("inf")}, {"gpu_memory_utilization": 0},
        {"gpu_memory_utilization": 1.5}, {"gpu_memory_utilization": "0.9"}, {"dtype": "int8"}, {"backend": "abacus"},
        {"scheduling_policy": "lottery"}, {"prefill_policy": "never"}, {"victim_policy": "me"},
        {"max_num_seqs": 8, "max_num_batched_tokens": 4},
        *[{"seed": value} for value in ("7", 1.5, True, None)],
        *[{name: value} for name in ("enable_prefix_caching", "async_scheduling") for value in ("no", 1, None)],
        *[{name: 5} for name in ("model", "tokenizer", "revision", "chat_template", "generation_config", "dtype")],
        {"model": None}, {"gpu_memory_utilization": True}, {"max_preemptions": -1}, {"max_preemptions": "a"},
        {"num_threads": 10**9}, {"max_num_queued_requests": "many"}, {"attempt_max_wait_s": "long"},
        {"scheduling_policy": []}, {"role": None}, {"quantization": "int3"}, {"quantization": 8}, {"quantization": ""},
    ],
    ids=str,
)  # fmt: skip
def test_an_impossible_value_names_its_option(option):
    with pytest.raises(ConfigError) as caught:
        decided(**option)
    assert caught.value.parameter in option and str(caught.value).startswith(caught.value.parameter)


def test_keys_and_values_are_held_as_the_model_runs_or_in_int8():
    assert decided().kv_cache_dtype == "float32" and decided(dtype="bfloat16").kv_cache_dtype == "bfloat16"
    assert decided(dtype="bfloat16", kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"
    for dtype in ("float32", "bfloat16"):
        assert decided(dtype=dtype, kv_cache_dtype="int8").kv_cache_dtype == "int8"
    with pytest.raises(ConfigError, match="kv_cache_dtype: a model that runs in float32 keeps .* got 'bfloat16'"):
        decided(kv_cache_dtype="bfloat16")
    with pytest.raises(ConfigError, match="kv_cache_dtype: must be one of auto, bfloat16, float32, int8, got 'fp8'"):
        decided(kv_cache_dtype="fp8")
