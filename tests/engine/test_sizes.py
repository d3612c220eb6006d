"""Sizes that nobody's memory holds: what can be served is, the rest is refused by name before anything is read."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from tests.engine import tiny

from headrace.engine.build import build_engine
from headrace.llm import LLM
from headrace.words.config import engine_config
from headrace.words.errors import ConfigError, EngineError
from headrace.words.params import SamplingParams

pytest.importorskip("headrace._native", reason="the native kernels were not built")
PROMPTS = [{"prompt_token_ids": [*range(3, 3 + length)]} for length in (1, 17, 100)]
PARAMS = SamplingParams(max_tokens=8, temperature=1.0, seed=2, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tiny.write(tmp_path_factory.mktemp("sizes") / "tiny"))


def answers(folder: str, **options) -> list[list[int]]:
    with LLM(folder, num_threads=1, max_num_seqs=2, **options) as model:
        return [output.outputs[0].token_ids for output in model.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize("budget", [2**31, 2**40, 2**62])
def test_a_budget_beyond_all_rows_at_full_length_takes_no_more_room_than_these(folder, budget):
    assert answers(folder, max_num_batched_tokens=budget) == answers(folder)


def test_a_checkpoint_of_endless_positions_gets_tables_for_those_that_its_cache_holds(folder, tmp_path):
    changed = tiny.write(tmp_path)
    tiny.write_json(changed / "config.json", {**tiny.CONFIG, "max_position_embeddings": 2**22})
    tracemalloc.start()
    try:
        assert answers(str(changed), num_gpu_blocks_override=20) == answers(folder, num_gpu_blocks_override=20)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["dynamic", "linear"])
def test_how_much_memory_there_is_decides_nothing_about_numbers(folder, tmp_path, kind):
    changed = tiny.write(tmp_path)
    config = json.loads((changed / "config.json").read_text())
    scaling = {"type": kind, "factor": 2.0, "original_max_position_embeddings": 32}
    tiny.write_json(changed / "config.json", {**config, "rope_scaling": scaling})
    assert answers(str(changed), num_gpu_blocks_override=8) == answers(str(changed), num_gpu_blocks_override=80)


def test_more_rows_than_can_be_kept_are_refused_by_name(folder):
    with pytest.raises(ConfigError, match=r"^max_num_seqs: must be at most 65536, got 65537$"):
        LLM(folder, max_num_seqs=65_537)


def test_memory_that_is_not_there_is_told_in_one_line_with_what_to_lower(folder):
    from headrace.ops.cpu import CpuOps

    class Poor(CpuOps):
        def kv_caches(self, *args, **named):
            raise MemoryError("std::bad_alloc")

    with pytest.raises(EngineError, match="not enough memory .*GiB are available; lower max_num_seqs") as error:
        build_engine(engine_config(model=folder), ops=Poor("float32", 1))
    assert "\n" not in str(error.value)
