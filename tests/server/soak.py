"""What takes minutes: `make soak`. HEADRACE_SOAK_SECONDS says how long each of the long ones runs (30 by default),
HEADRACE_SOAK_SEED which bodies schemathesis makes up."""

import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.engine import tiny
from tests.server.process import ServerProcess, SseReader

MODEL = "smollm2-135m"
ROOT = Path(__file__).parents[2]
MOST_SILENCE_S = 0.2
"""Twice the promise, for a machine that has other work too."""
SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "30"))
SEED = os.environ.get("HEADRACE_SOAK_SEED", "1")
SEARCH_S = 60 + 2 * SECONDS
"""How long schemathesis makes up bodies, of one mode: valid ones may ask for long answers, and cores may be slow."""
pytestmark = pytest.mark.timeout(SECONDS * 2 + 700)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> str:
    """The tiny checkpoint without its token that is not finite, and with room for long answers."""
    folder = tiny.write(tmp_path_factory.mktemp("tiny"))
    tiny.write_json(folder / "config.json", {**tiny.CONFIG, "max_position_embeddings": 4_096})
    weights = {name: np.nan_to_num(array) for name, array in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    return str(folder)


def test_schemathesis_finds_nothing(healthy, tmp_path):
    """Valid and invalid bodies of every route, in a room so small that also valid ones may be 400."""
    with ServerProcess(healthy, tmp_path, "--served-model-name", "toy", "--max-model-len", "128") as server:
        run_schemathesis(server, tmp_path, "--mode", "all", "--exclude-checks", "positive_data_acceptance")


def test_every_body_that_the_schema_allows_is_accepted(healthy, tmp_path):
    """In a room for all of them, and as far as it keeps the rules between fields, which no schema can say. A valid body
    may ask for a thousand answers as long as the context: 504 accepts it, too."""
    unknown = [f"--exclude-path={path}" for path in ("/v1/models/{name}", "/v1/requests/{name}")]
    flags = ("--served-model-name", "toy", "--max-model-len", "4096", "--request-timeout-s", "20")
    with ServerProcess(healthy, tmp_path, *flags) as server:
        command = ("--mode", "positive", "--checks", "positive_data_acceptance", "--phases", "examples,fuzzing")
        run_schemathesis(server, tmp_path, *command, *unknown, hooks="tests.server.schema_rules")


def run_schemathesis(server: ServerProcess, folder: Path, *options: str, hooks: str | None = None) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"SCHEMATHESIS_HOOKS": hooks} if hooks else {})
    command = ["run", f"{server.url}/openapi.json", "--max-examples", "50", "--no-color", "--seed", SEED]
    command += ["--request-timeout", "60", "--max-time", f"{SEARCH_S:.0f}"]
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [program, *command, "--continue-on-failure", *options],
        capture_output=True,
        text=True,
        timeout=SEARCH_S + 300,
        cwd=folder,
        env=env,
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:]
    assert "Traceback" not in server.err.read_text()


def probe(port: int, waits: list[float], is_over: threading.Event, pause_s: float = 0.03) -> None:
    """Seconds that /health took, again and again on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    while not is_over.wait(pause_s):
        before = time.perf_counter()
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        waits.append(time.perf_counter() - before)
    connection.close()


def test_200_streams_of_the_default_model_finish_while_probes_answer(tmp_path):
    waits: list[float] = []
    is_over = threading.Event()
    body = {"max_tokens": 24, "ignore_eos": True}
    with ServerProcess(MODEL, tmp_path, "--max-model-len", "1024") as server:
        watch = threading.Thread(target=probe, args=(server.port, waits, is_over))
        watch.start()
        readers = [SseReader(server.port, {**body, "prompt": f"Story {i}:", "seed": i}) for i in range(200)]
        texts = [reader.read_all() for reader in readers]
        is_over.set()
        watch.join()
    for reader in readers:
        reader.close()
    waits.sort()
    p50, p99 = waits[len(waits) // 2] * 1e3, waits[int(len(waits) * 0.99)] * 1e3
    print(f"/health while 200 streams run: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {waits[-1] * 1e3:.1f} ms")
    assert all("data: [DONE]" in text and '"error"' not in text for text in texts)
    assert waits[-1] < 0.1


def odd_bodies() -> dict[str, tuple[str, dict]]:
    """Bodies that are long to read, in the ways that a body can be."""
    message = {"role": "user", "content": "hi"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}
    once = {"prompt": "a", "max_tokens": 1}
    return {
        "100,000 messages": ("/v1/chat/completions", {"messages": [message] * 100_000}),
        "16,000 messages": ("/v1/chat/completions", {"messages": [message] * 16_000}),
        "parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}] * 150_000}]}),
        "tools": ("/v1/chat/completions", {"messages": [message], "tools": [tool] * 30_000}),
        "variables": ("/v1/chat/completions", {"messages": [message], "chat_template_kwargs": {"x": [[1]] * 300_000}}),
        "ids": ("/v1/completions", {"prompt": [5] * 1_000_000}),
        "text": ("/v1/completions", {"prompt": "a b " * 900_000}),
        "too much text": ("/v1/completions", {"prompt": "a" * 30_000_000}),
        "lists": ("/v1/completions", {**once, "metadata": [[]] * 1_000_000}),
        "numbers": ("/v1/completions", {**once, "metadata": [1.5] * 1_000_000}),
        "surrogates": ("/v1/completions", {**once, "metadata": ["\ud800"] * 300_000}),
        "a bias": ("/v1/completions", {**once, "logit_bias": {str(i): 1 for i in range(150_000)}}),
    }


def test_no_body_keeps_probes_waiting(tmp_path):
    with ServerProcess(MODEL, tmp_path, "--max-model-len", "1024") as server:
        for name, (path, body) in odd_bodies().items():
            data, waits, is_over = json.dumps(body), [], threading.Event()
            watch = threading.Thread(target=probe, args=(server.port, waits, is_over, 0.002))
            watch.start()
            response = httpx.post(
                server.url + path, content=data, headers={"content-type": "application/json"}, timeout=60
            )
            is_over.set()
            watch.join()
            print(f"/health beside {name} ({len(data):,} bytes): worst {max(waits) * 1e3:.0f} ms")
            assert response.status_code in (200, 400) and max(waits) < MOST_SILENCE_S, name


def rate_through_http(port: int, number: int, num_tokens: int) -> float:
    """Tokens per second of raw readers, from the first request to the last byte."""
    body = {"prompt": "A water mill is", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    started = time.perf_counter()
    readers = [SseReader(port, {**body, "seed": i}) for i in range(number)]
    for reader in readers:
        reader.read_all()
    return number * num_tokens / (time.perf_counter() - started)


OFFLINE = """
import sys, time
from headrace import LLM, SamplingParams
with LLM(sys.argv[1], max_model_len=1024) as llm:
    for line in sys.stdin:
        number, length = map(int, line.split())
        params = [SamplingParams(max_tokens=length, ignore_eos=True, seed=i) for i in range(number)]
        began = time.perf_counter()
        llm.generate(["A water mill is"] * number, params, use_tqdm=False)
        print(number * length / (time.perf_counter() - began), flush=True)
"""


def test_the_server_costs_little_beside_the_offline_rate(tmp_path):
    """Both measured in turns, for the machine has other work too."""
    command = [sys.executable, "-c", OFFLINE, MODEL]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    rounds = []
    with ServerProcess(MODEL, tmp_path, "--max-model-len", "1024") as server, subprocess.Popen(command, **pipes) as llm:
        for _ in range(4):
            llm.stdin.write("32 64\n")
            llm.stdin.flush()
            offline = float(llm.stdout.readline())
            rounds.append((rate_through_http(server.port, 32, 64), offline))
        llm.stdin.close()
    rates = ", ".join(f"{through:.0f} beside {offline:.0f}" for through, offline in rounds)
    share = max(through for through, _ in rounds) / max(offline for _, offline in rounds)
    print(f"tokens/s through HTTP and offline: {rates}; best {share:.1%}")
    assert share > 0.85


@pytest.mark.parametrize("step", [1, 60])
def test_where_no_python_runs_any_more_a_timer_dumps_the_stacks_and_ends_the_process(healthy, tmp_path, step):
    with ServerProcess(healthy, tmp_path, "--step-timeout", "1", env={"HEADRACE_FAULT": f"freeze@{step}"}) as server:
        reader = SseReader(server.port, {"prompt": [70], "max_tokens": 500, "ignore_eos": True})
        assert server.wait(10) == 1 and server.is_port_free()
        reader.close()
    assert "fault.py" in server.err.read_text()


def memory_of(server: ServerProcess) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_25_overload_is_refused_and_the_rest_is_served(healthy, tmp_path):
    """Open loop at ten times what a queue of 32 takes."""

    async def work(url):
        counts: dict[int, int] = {}

        async def one(client, i):
            response = await client.post(
                "/v1/completions", json={"prompt": [65 + i % 9] * 30, "max_tokens": 200, "ignore_eos": True}
            )
            counts[response.status_code] = counts.get(response.status_code, 0) + 1

        async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=800)) as client:
            end, tasks, i = time.monotonic() + SECONDS, [], 0
            while time.monotonic() < end:
                tasks.append(asyncio.create_task(one(client, i)))
                i += 1
                await asyncio.sleep(0.005)
            await asyncio.gather(*tasks)
        return counts

    flags = ("--max-num-seqs", "8", "--max-num-queued-requests", "32")
    with ServerProcess(healthy, tmp_path, *flags) as server:
        before = memory_of(server)
        counts = asyncio.run(work(server.url))
        grown = memory_of(server) - before
        assert server.get("/ready").status_code == 200
    print(f"answers by status: {counts}; {grown / 1e6:.1f} MB grown")
    assert set(counts) == {200, 503} and counts[200] > 50 and grown < 100e6


def test_10_slow_readers_are_cut_and_others_keep_their_pace(healthy, tmp_path):
    body = {"prompt": [70, 71], "max_tokens": 4_000, "ignore_eos": True, "logprobs": 20, "return_token_ids": True}
    with ServerProcess(healthy, tmp_path, "--send-timeout", "2", "--max-num-seqs", "64") as server:
        slow = [SseReader(server.port, {**body, "seed": i}, receive_bytes=4_096) for i in range(20)]
        time.sleep(12)
        text = SseReader(server.port, {"prompt": [70], "max_tokens": 50, "ignore_eos": True}).read_all()
        lives = server.get("/v1/requests").json()["data"]
        for reader in slow:
            reader.close()
        assert "data: [DONE]" in text
        print({life["finish_reason"]: life["num_output_tokens"] for life in lives})
        assert memory_of(server) < 2e9
        assert "left its stream full" in server.err.read_text()


def test_29_a_mixed_load_with_aborts_leaves_nothing_behind(healthy, tmp_path):
    rng = random.Random(1)

    def one(server: ServerProcess) -> None:
        body = {"prompt": [rng.randrange(60, 120)] * rng.randrange(1, 90), "max_tokens": rng.randrange(1, 200)}
        reader = SseReader(
            server.port, {**body, "ignore_eos": True, "n": rng.randrange(1, 4), "seed": rng.randrange(9)}
        )
        if rng.random() < 0.2:
            reader.read_some()
            reader.close()
        else:
            text = reader.read_all()
            assert "data: [DONE]" in text and '"error"' not in text

    flags = ("--kv-cache-memory-bytes", "20000000")
    with ServerProcess(healthy, tmp_path, *flags, env={"HEADRACE_CHECK_INVARIANTS": "64"}) as server:
        end, sizes = time.monotonic() + SECONDS, []
        while time.monotonic() < end:
            for _ in range(10):
                one(server)
            sizes.append(memory_of(server))
        time.sleep(1)
        assert "vllm:kv_cache_usage_perc" in (text := server.get("/metrics").text)
        held = [line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{")]
    half = len(sizes) // 2
    growth = sizes[-1] - sizes[half]
    print(f"{len(sizes) * 10} requests; {growth / 1e6:.2f} MB grown in the second half")
    assert held[0].endswith(" 0.0") and growth < 30e6, json.dumps(sizes)
