"""Benchmarks of an engine in this process, and of processes that start one."""

from __future__ import annotations

import json

import pytest
from tests.engine import fakes, tiny

from headrace.bench import offline, startup
from headrace.bench.offline import Work
from headrace.cli.app import run
from headrace.cli.profile_table import profile_table
from headrace.llm import LLM
from headrace.words.errors import ConfigError, EngineError

WORK = Work(num_prompts=5, input_len=7, output_len=4)


def model(**engine) -> LLM:
    return LLM.from_engine(fakes.engine(fakes.FakeExecutor(), **{"max_model_len": 64} | engine))


def test_throughput_counts_every_token_that_was_asked_for():
    found = offline.throughput(model(), WORK)
    assert (found["completed"], found["failed"], found["errors"]) == (5, 0, [])
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (35, 20)
    assert found["output_throughput"] == pytest.approx(20 / found["duration_s"])
    assert found["ttft_ms"]["p50"] <= found["e2el_ms"]["p50"] <= 1e3 * found["duration_s"]
    assert {"backend", "dtype", "num_threads"} <= found.keys()


def test_latency_measures_rounds_and_leaves_out_those_before():
    told: list[object] = []
    llm = model()
    found = offline.latency(llm, WORK, num_rounds=3, num_warmups=2, tell=told.append)
    assert (found["rounds"], found["completed"], len(told)) == (3, 15, 5)
    assert llm.get_metrics().num_accepted == 25
    assert found["batch_ms"]["mean"] == pytest.approx(1e3 * found["duration_s"] / 3)


def test_no_round_finds_its_prompts_in_the_prefix_cache():
    llm = model()
    offline.latency(llm, Work(4, 20, 2), num_rounds=4)
    assert llm.get_metrics().num_cached_tokens == 0


def test_the_same_seed_asks_for_the_same_and_ids_are_the_models():
    assert Work(seed=1).prompts(320) == Work(seed=1).prompts(320) != Work(seed=2).prompts(320)
    assert {i for p in Work(200, 9).prompts(103) for i in p["prompt_token_ids"]} == {100, 101, 102}
    assert Work(1, 3).prompts(5)[0]["prompt_token_ids"] == [4, 4, 4]


def test_lengths_that_do_not_fit_are_refused_before_anything_runs():
    llm = model()
    with pytest.raises(ConfigError, match=r"input_len: 60 tokens and 5 of output do not fit max_model_len \(64\)"):
        offline.throughput(llm, Work(1, 60, 5))
    assert llm.get_metrics().num_accepted == 0


def test_a_request_that_fails_is_counted_and_named():
    def fault(plan):
        raise ValueError("no")

    llm = LLM.from_engine(fakes.engine(fakes.FakeExecutor(on_forward=fault), max_model_len=64))
    found = offline.throughput(llm, WORK, num_warmups=0)
    assert (found["completed"], found["failed"]) == (0, 5) and found["errors"] == ["ended with error"]


@pytest.fixture
def cli(capsys):
    """Runs a command line over a fake model; gives (exit code, stdout, stderr)."""

    def call(*arguments: str):
        code = run(arguments, lambda **keywords: model())
        return code, *capsys.readouterr()

    return call


def test_commands_print_a_table_or_json_and_keep_the_json(cli, tmp_path):
    sizes = ("--input-len", "5", "--output-len", "3", "--num-warmups", "0")
    code, out, _ = cli("bench", "throughput", "--num-prompts", "4", *sizes, "--save-result", str(tmp_path / "found"))
    assert code == 0 and "4 requests in" in out and "output tokens/s" in out and "first token" in out
    assert json.loads((tmp_path / "found").read_text())["total_output_tokens"] == 12
    code, out, _ = cli("bench", "latency", "--batch-size", "2", "--num-rounds", "3", *sizes, "--json")
    assert code == 0 and json.loads(out)["completed"] == 6 and json.loads(out)["batch_ms"].keys() >= {"p50", "p99"}
    code, out, _ = cli("bench", "latency", "--num-rounds", "1", *sizes)
    assert out.splitlines()[-1].startswith("whole batch")
    code, out, err = cli("bench", "latency", *sizes, "--save-result", str(tmp_path / "nowhere" / "found"))
    assert (code, out) == (1, "") and err.startswith("headrace: save_result: ") and "nowhere" in err
    code, _, err = cli("bench", "throughput", "--input-len", "100")
    assert code == 1 and err.startswith("headrace: input_len: 100 tokens")


def test_a_profile_says_what_each_op_took_and_what_python_did(tmp_path):
    with LLM(str(tiny.write(tmp_path / "tiny")), num_gpu_blocks_override=32, max_model_len=64) as llm:
        found = offline.latency(llm, Work(2, 5, 4), num_rounds=2, num_warmups=1, with_profile=True)
    profile = found["profile"]
    assert profile["num_steps"] == 2 * 4
    assert 0 < profile["python_share"] < 1 and profile["ops_share"] <= profile["native_share"]
    assert {"linear", "attend", "glu", "draw"} <= {op["kind"] for op in profile["ops"]}
    assert [op["ms"] for op in profile["ops"]] == sorted((op["ms"] for op in profile["ops"]), reverse=True)
    assert profile["limits"]["read_gb_per_s"] > 0 < profile["limits"]["gflop_per_s"]
    lines = profile_table(profile | {"limits": {"read_gb_per_s": 1e9, "gflop_per_s": 1e9}}).splitlines()
    assert lines[0].startswith("8 steps of") and len(lines) == 3 + len(profile["ops"])
    fast = profile_table(profile | {"limits": {"read_gb_per_s": 1e-9, "gflop_per_s": 1e-9}}).splitlines()
    assert len(fast) == len(lines) + 1 and fast[-1].startswith("above 100%")


def test_an_engine_without_native_kernels_has_no_profile(cli):
    code, _, err = cli("bench", "throughput", "--input-len", "5", "--output-len", "3", "--profile")
    assert code == 1 and err.startswith("headrace: profile: only the native kernels are timed")


def test_a_start_is_measured_in_a_process_of_its_own(tmp_path, capsys):
    told: list[object] = []
    keywords = {"model": str(tiny.write(tmp_path / "tiny")), "num_gpu_blocks_override": 8}
    found = startup.startup(keywords, 2, told.append)
    assert found["rounds"] == len(told) == 2
    parts = [found[f"{phase[:-2]}_ms"]["mean"] for phase in startup.PHASES]
    assert all(part > 0 for part in parts) and sum(parts[:-1]) == pytest.approx(parts[-1])
    assert found["first_ms"].keys() == {phase[:-2] for phase in startup.PHASES}


def test_a_start_that_fails_says_why(tmp_path):
    with pytest.raises(EngineError, match=r"the engine did not start: config\.json: is missing"):
        startup.startup({"model": str(tmp_path)}, 1)
