"""Cache sizing to the byte, and what the machine is said to offer."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.worker.toy import ToyOps

from headrace.words.cache_spec import PagedKV, RowState, held_in
from headrace.words.config import EngineConfig, Hardware, ModelConfig, Resolved, RopeConfig, resolve
from headrace.words.errors import ConfigError, EngineError, UnsupportedError
from headrace.words.plan import CacheLayout
from headrace.worker.hardware import measure_hardware
from headrace.worker.memory import activation_bytes, block_bytes, fit_model_len, make_caches, plan_cache

GIB = 1 << 30
QWEN3_06B = (PagedKV(8, 128, "bfloat16"),) * 28
SMOLLM = (PagedKV(3, 64, "float32"),) * 30


def model_config(max_position_embeddings: int = 8_192) -> ModelConfig:
    return ModelConfig(
        "llama", 49_152, 576, 1_536, 30, 9, 3, 64, max_position_embeddings, 1e-5, RopeConfig(), dtype="float32"
    )


def resolved(max_position_embeddings: int = 8_192, **options: object) -> Resolved:
    return resolve(EngineConfig(**options), model_config(max_position_embeddings), machine())


def machine(available: int = 64 * GIB, limit: int = 64 * GIB) -> Hardware:
    return Hardware(2, limit, available)


@pytest.mark.covers("M22")
def test_bytes_of_a_block_of_qwen3_06b():
    assert block_bytes(QWEN3_06B, 1) == 114_688
    assert block_bytes(QWEN3_06B, 16) == 1.75 * 2**20
    assert block_bytes(QWEN3_06B, 256) == 29_360_128


@pytest.mark.covers("M22")
@pytest.mark.parametrize(("given", "blocks"), [(10 * 29_360_128, 10), (10 * 29_360_128 - 1, 9), (2 * 29_360_128, 2)])
def test_given_bytes_are_divided_into_whole_blocks(given, blocks):
    layout = plan_cache(resolved(block_size=256, kv_cache_memory_bytes=given), QWEN3_06B, 0, 0, machine())
    assert layout == CacheLayout(blocks, 256, 29_360_128)
    assert layout.num_bytes <= given
    assert layout.capacity_tokens == (blocks - 1) * 256


def test_the_cache_is_no_larger_than_all_rows_at_full_length_can_use():
    layout = plan_cache(resolved(max_num_seqs=3, max_model_len=100), SMOLLM, 0, 0, machine())
    assert layout == CacheLayout(3 * 7 + 1, 16, 16 * 46_080)


def test_the_cache_is_no_larger_than_4_gib_unless_asked():
    per_block = 16 * 46_080
    assert plan_cache(resolved(), SMOLLM, 0, 0, machine()).num_blocks == 4 * GIB // per_block
    asked = resolved(kv_cache_memory_bytes=5 * GIB)
    assert plan_cache(asked, SMOLLM, 0, 0, machine()).num_blocks == 5 * GIB // per_block


@pytest.mark.covers("M22")
@pytest.mark.parametrize("hardware", [machine(available=2 * GIB), machine(limit=2 * GIB)])
def test_the_cache_is_what_the_share_leaves_beside_weights_and_a_step(hardware):
    config = resolved(gpu_memory_utilization=0.5)
    layout = plan_cache(config, SMOLLM, 300_000_000, 100_000_000, hardware)
    assert layout.num_blocks == (GIB - 400_000_000) // (16 * 46_080)


def test_a_number_of_blocks_is_taken_as_that_many_usable_ones():
    layout = plan_cache(resolved(num_gpu_blocks_override=6), SMOLLM, 0, 0, machine(available=1))
    assert layout.num_blocks - 1 == 6


def test_no_room_for_one_block_is_an_error_with_what_is_needed_and_what_is_free():
    with pytest.raises(EngineError) as error:
        plan_cache(resolved(block_size=1_024), SMOLLM, int(0.9 * GIB), 0, machine(available=GIB))
    message = str(error.value)
    for part in ("0.09 GiB", "1.00 GiB", "0.02 GiB", "0.90 GiB", "gpu_memory_utilization", "kv_cache_memory_bytes"):
        assert part in message


def test_given_bytes_that_hold_no_usable_block_are_refused():
    with pytest.raises(ConfigError, match=f"{2 * 16 * 46_080} bytes.*got 1000 ") as error:
        plan_cache(resolved(kv_cache_memory_bytes=1_000), SMOLLM, 0, 0, machine())
    assert error.value.parameter == "kv_cache_memory_bytes"


@pytest.mark.parametrize(
    ("name", "value"), [("num_gpu_blocks_override", 10**12), ("kv_cache_memory_bytes", 10**15)]
)
def test_a_cache_larger_than_all_memory_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match="GiB of memory; lower it") as refused:
        plan_cache(resolved(**{name: value}), SMOLLM, 0, 0, machine())
    assert refused.value.parameter == name


def test_a_length_that_nobody_asked_for_shrinks_to_the_cache_with_one_warning(caplog):
    config, layout = resolved(), CacheLayout(101, 16)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        fitted = fit_model_len(config, layout)
    assert fitted.scheduler.max_model_len == 1_600
    assert [record.getMessage() for record in caplog.records] == [
        "max_model_len shrinks from 8192 to 1600 tokens: the cache holds no more"
    ]
    assert fit_model_len(fitted, layout) is fitted


def test_an_asked_length_that_does_not_fit_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="holds 1600 tokens.*got 1601") as error:
        fit_model_len(resolved(max_model_len=1_601), CacheLayout(101, 16))
    assert error.value.parameter == "max_model_len"
    assert fit_model_len(resolved(max_model_len=1_600), CacheLayout(101, 16)).scheduler.max_model_len == 1_600


@pytest.mark.covers("M24")
def test_the_peak_of_a_step_counts_the_largest_batch_there_can_be():
    """min(budget, rows × length) tokens, never none, however the limits stand to one another."""
    peak = {
        options: activation_bytes(model_config(), resolved(**dict(options)).scheduler)
        for options in (
            (("max_num_batched_tokens", 4_096), ("max_num_seqs", 4), ("max_model_len", 64)),
            (("max_num_batched_tokens", 256), ("max_num_seqs", 4), ("max_model_len", 64)),
            (("max_num_batched_tokens", 1), ("max_num_seqs", 1), ("max_model_len", 8_192)),
            (("max_num_batched_tokens", 4_096), ("max_num_seqs", 4), ("max_model_len", 8_192)),
        )
    }
    by_batch, same, least, most = peak.values()
    assert by_batch == same
    assert 0 < least < same < most


def test_the_peak_of_a_step_counts_all_experts_of_a_token_and_all_drafts_of_a_row():
    scheduler, dense = resolved(max_model_len=64, max_num_seqs=64).scheduler, model_config()
    sparse = replace(dense, raw={"num_experts_per_tok": 8, "moe_intermediate_size": 512})
    num_tokens = scheduler.max_num_batched_tokens
    widths = 3 * 1_536, 8 * (2 * 576 + 3 * 512)
    more = activation_bytes(sparse, scheduler) - activation_bytes(dense, scheduler)
    assert more == 4 * num_tokens * (widths[1] - widths[0])
    more = activation_bytes(dense, replace(scheduler, num_drafts=3)) - activation_bytes(dense, scheduler)
    assert more == 4 * 2 * (64 * 4 - 64) * 49_152


def test_a_cache_in_int8_holds_about_twice_the_tokens_of_one_in_bfloat16():
    given = resolved(kv_cache_memory_bytes=GIB)
    in_bfloat16, in_int8 = (
        plan_cache(given, held_in(QWEN3_06B, dtype), 0, 0, machine()).capacity_tokens for dtype in ("bfloat16", "int8")
    )
    assert in_int8 / in_bfloat16 == pytest.approx(256 / 132, rel=1e-2)
    assert held_in((None, RowState(((2, 2),), "float32")), "int8") == (None, RowState(((2, 2),), "float32"))


@pytest.mark.covers("M23")
def test_a_fresh_cache_reads_as_zero():
    layout = CacheLayout(5, 4)
    caches = make_caches(ToyOps(), (PagedKV(1, 2, "float32"), None, PagedKV(2, 2, "float32")), layout)
    assert [None if cache is None else cache.shape for cache in caches] == [(20, 2), None, (20, 4)]
    assert not any(np.any(cache) for cache in caches if cache is not None)
    with pytest.raises(UnsupportedError, match="RowState"):
        make_caches(ToyOps(), (RowState(((2, 2),), "float32"),), layout)


MEMINFO = "MemTotal:  8000000 kB\nMemFree:   1000000 kB\nMemAvailable:  5000000 kB\nHugePages_Total:       0\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    return root


V2 = {"proc/self/cgroup": "0::/user/app\n"}
V1 = {"proc/self/cgroup": "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/\n0::/\n"}
LIMITS = {
    "no groups": ({}, 8_192_000_000),
    "v2 without a limit": ({**V2, "sys/fs/cgroup/user/app/memory.max": "max\n"}, 8_192_000_000),
    "v2 of the group": ({**V2, "sys/fs/cgroup/user/app/memory.max": "1000\n"}, 1_000),
    "v2 of a parent": (
        {**V2, "sys/fs/cgroup/user/app/memory.max": "max\n", "sys/fs/cgroup/user/memory.max": "2000\n"},
        2_000,
    ),
    "v2 inside a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3_000),
    "v1 of the group": ({**V1, "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "4000\n"}, 4_000),
    "v1 inside a container": ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n"}, 5_000),
    "v1 without a limit": ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4_096}\n"}, 8_192_000_000),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_memory_limit_is_the_smallest_that_any_group_sets(tmp_path, case):
    files, limit = LIMITS[case]
    measured = measure_hardware(write(tmp_path, files))
    assert measured.memory_limit_bytes == limit
    assert measured.memory_available_bytes == min(5_120_000_000, limit)


@pytest.mark.parametrize(
    "files",
    [
        {**V2, "sys/fs/cgroup/user/app/cpu.max": "50000 100000\n"},
        {
            **V1,
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000\n",
        },
        {**V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
    ],
)
def test_a_quota_of_half_a_core_is_one_core(tmp_path, files):
    assert measure_hardware(write(tmp_path, files)).num_cores == 1


def test_this_machine_can_be_measured():
    measured = measure_hardware()
    assert measured.num_cores >= 1
    assert 0 < measured.memory_available_bytes <= measured.memory_limit_bytes


def test_the_environment_may_ask_for_fewer_threads_and_a_bad_number_is_named(monkeypatch):
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "1")
    assert measure_hardware().num_cores == 1
    monkeypatch.setenv("HEADRACE_NUM_THREADS", "two")
    with pytest.raises(ConfigError, match="HEADRACE_NUM_THREADS: must be a positive whole number, got 'two'"):
        measure_hardware()
