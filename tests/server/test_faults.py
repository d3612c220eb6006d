"""Faults of a running server, row by row of the specification's table, on a tiny checkpoint with random weights."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from tests.engine import tiny
from tests.server.process import ServerProcess, SseReader

LONG = {"prompt": [70, 71, 72], "max_tokens": 3_500, "ignore_eos": True, "temperature": 0}
SHORT = {**LONG, "max_tokens": 8}
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tiny.write(tmp_path_factory.mktemp("tiny"))
    tiny.write_json(folder / "config.json", {**tiny.CONFIG, "max_position_embeddings": 4_096})
    return str(folder)


@pytest.fixture
def server(model, tmp_path):
    """Starts servers; whatever happens none is left."""
    started = []

    def start(*flags, fault=None, **more):
        env = {"HEADRACE_FAULT": fault} if fault else {}
        made = ServerProcess(model, tmp_path, "--max-num-seqs", "64", *flags, env=env, **more)
        started.append(made)
        return made

    yield start
    for made in started:
        made.stop()


def streams(port, number, body=LONG):
    readers = [SseReader(port, {**body, "seed": i}) for i in range(number)]
    for reader in readers:
        reader.read_some()
    return readers


def ends(readers):
    """What each reader was told to the end, read all at once."""
    with concurrent.futures.ThreadPoolExecutor(len(readers)) as pool:
        return list(pool.map(lambda reader: reader.read_all(), readers))


def error_of(text):
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text[-300:]
    return json.loads(events[-2])["error"]


def test_1_when_the_engine_dies_every_stream_is_told_and_the_server_ends(server):
    one = server(fault="raise@150").wait_until_ready()
    before = set(os.listdir("/dev/shm"))
    readers = streams(one.port, 32)
    started = time.monotonic()
    errors = [error_of(text) for text in ends(readers)]
    assert time.monotonic() - started < 5 and {e["code"] for e in errors} == {"engine_dead"}
    assert one.wait(10) == 1 and one.is_port_free() and set(os.listdir("/dev/shm")) <= before
    assert "Traceback" not in errors[0]["message"]


def test_3_a_step_that_hangs_is_noticed_dumped_and_ended(server):
    one = server("--step-timeout", "1", fault="hang@60").wait_until_ready()
    errors = [error_of(text) for text in ends(streams(one.port, 4))]
    assert all("no step ended for 1 s" in e["message"] for e in errors)
    assert one.wait(10) == 1
    log = one.err.read_text()
    assert "headrace-core" in log or "fault.py" in log
    assert "most recent call first" in log


def test_a_crash_inside_a_kernel_closes_everything(server):
    one = server(fault="segv@60").wait_until_ready()
    readers = streams(one.port, 4)
    started = time.monotonic()
    ends(readers)
    assert one.wait(5) == -signal.SIGSEGV and time.monotonic() - started < 3 and one.is_port_free()


def test_a_server_that_lives_through_trouble(server):
    """Rows 4 and 8 here, and the heads that no client of good will sends."""
    one = server("--step-timeout", "0.6", "--shutdown-timeout", "30").wait_until_ready()
    expected = one.post("/v1/completions", SHORT).json()["choices"][0]["text"]
    troubles = (stopped_and_continued, five_thousand_headers, five_megabytes_of_header, a_prompt_of_megabytes)
    for check in (*troubles, forty_clients_that_leave):
        check(one)
        assert one.get("/health").status_code == 200, check.__name__
        assert one.post("/v1/completions", SHORT).json()["choices"][0]["text"] == expected, check.__name__
    drained_under_load(one, expected)


def stopped_and_continued(one):
    one.signal(signal.SIGSTOP)
    time.sleep(2)
    one.signal(signal.SIGCONT)
    time.sleep(0.8)


def answer_to(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(4096)
        except (ConnectionResetError, BrokenPipeError):
            return b""


def five_thousand_headers(one):
    head = "".join(f"x-{i}: 1\r\n" for i in range(5_000))
    told = answer_to(one.port, f"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n".encode())
    assert told.startswith(b"HTTP/1.1 431") and b'"type":"HeadersTooLargeError"' in told


def five_megabytes_of_header(one):
    told = answer_to(one.port, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nx: " + b"a" * 5_000_000 + b"\r\n\r\n")
    assert told == b"" or told.startswith(b"HTTP/1.1 431")


def a_prompt_of_megabytes(one):
    """Row 7: while it is tokenized probes are answered; it alone takes longer than they may."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool, httpx.Client(base_url=one.url, timeout=10) as probes:
        began = time.monotonic()
        refused = pool.submit(one.post, "/v1/completions", {"prompt": "word and " * 220_000})
        waits = []
        while not refused.done():
            before = time.monotonic()
            assert probes.get("/health").status_code == 200
            waits.append(time.monotonic() - before)
            time.sleep(0.01)
        assert refused.result().status_code == 400 and time.monotonic() - began > 4 * max(waits) and max(waits) < 0.5


def forty_clients_that_leave(one):
    for reader in streams(one.port, 40):
        reader.close()
    end = time.monotonic() + 1
    while "vllm:kv_cache_usage_perc{" in (text := one.get("/metrics").text) and time.monotonic() < end:
        if [line.split()[-1] for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{")] == ["0.0"]:
            return
    raise AssertionError("blocks are still held")


def drained_under_load(one, expected):
    """Row 16: open requests end, new ones are refused, the exit code is 0."""
    readers = streams(one.port, 8, {**LONG, "max_tokens": 1_000})
    one.signal(signal.SIGTERM)
    time.sleep(0.1)
    ready, refused = one.get("/ready"), one.post("/v1/completions", SHORT)
    assert ready.status_code == refused.status_code == 503 and refused.headers["retry-after"]
    texts = ends(readers)
    assert all(text.endswith("data: [DONE]\n\n\r\n0\r\n\r\n") or "data: [DONE]" in text for text in texts)
    assert all('"finish_reason":"length"' in text and '"error"' not in text for text in texts)
    assert one.wait(10) == 0 and one.is_port_free()
    assert "leaked" not in one.err.read_text()


def test_16_a_request_whose_body_is_still_coming_is_in_flight_too(server):
    one = server().wait_until_ready()
    body = json.dumps(SHORT).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", one.port), timeout=10) as sock:
        sock.sendall(head.encode() + body[:9])
        time.sleep(0.2)
        one.signal(signal.SIGTERM)
        time.sleep(2.5)
        sock.sendall(body[9:])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    assert one.wait(5) == 0


def test_16_without_time_to_drain_streams_end_with_an_error_event(server):
    one = server("--shutdown-timeout", "0").wait_until_ready()
    readers = streams(one.port, 8)
    started = time.monotonic()
    one.signal(signal.SIGTERM)
    errors = [error_of(text) for text in ends(readers)]
    assert {e["code"] for e in errors} == {"aborted"} and "shutting down" in errors[0]["message"]
    assert one.wait(4) == 0 and time.monotonic() - started < 4


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_18_a_second_signal_ends_the_server_at_once(server, second):
    one = server().wait_until_ready()
    readers = streams(one.port, 2)
    one.signal(signal.SIGTERM)
    time.sleep(0.1)
    started = time.monotonic()
    one.signal(second)
    assert one.wait(2) == 128 + second and time.monotonic() - started < 1 and one.is_port_free()
    ends(readers)


def test_7_a_killed_server_leaves_nothing(server):
    before = set(os.listdir("/dev/shm"))
    one = server().wait_until_ready()
    readers = streams(one.port, 4)
    group = one.process.pid
    one.signal(signal.SIGKILL)
    one.wait(5)
    for reader in readers:
        reader.close()
    assert one.is_port_free() and set(os.listdir("/dev/shm")) <= before
    left = subprocess.run(["ps", "-o", "pid=", "-g", str(group)], capture_output=True, text=True).stdout.split()
    assert left == []


def test_17_a_signal_while_the_model_loads_ends_the_server(server, tmp_path):
    never_written = tmp_path / "template"
    os.mkfifo(never_written)
    one = server("--chat-template", str(never_written))
    time.sleep(1)
    one.signal(signal.SIGTERM)
    assert one.wait(5) in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert "ready" not in one.out.read_text() and one.is_port_free()


def test_19_a_port_in_use_is_named_with_its_holder_before_anything_is_loaded(model, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one = ServerProcess("no-such-model", tmp_path, "--port", str(port))
        assert one.wait(20) == 1
    text = one.err.read_text()
    assert f"port: {port} is in use by process {os.getpid()}" in text and len(text.splitlines()) == 1


@pytest.mark.parametrize("what", ["model.safetensors", "tokenizer.json"])
def test_20_and_21_a_damaged_checkpoint_is_one_line(model, tmp_path, what):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in Path(model).iterdir():
        data = file.read_bytes()
        (damaged / file.name).write_bytes(data[: len(data) // 2] if file.name == what else data)
    one = ServerProcess(str(damaged), tmp_path)
    assert one.wait(20) == 1
    text = one.err.read_text()
    assert what in text and len(text.splitlines()) == 1 and "Traceback" not in text and str(tmp_path) not in text


def test_27_a_cache_that_cannot_be_is_one_line_with_the_flag_to_change(model, tmp_path):
    one = ServerProcess(model, tmp_path, "--kv-cache-memory-bytes", "1000")
    assert one.wait(20) == 1
    text = one.err.read_text()
    assert "kv_cache_memory_bytes" in text and "1000" in text.replace(",", "") and len(text.splitlines()) == 1


def test_24_with_few_files_the_excess_is_refused_and_the_server_recovers(server):
    one = server(limits="ulimit -n 80").wait_until_ready()
    assert "raise it with ulimit -n" in one.err.read_text()
    sockets = []
    for _ in range(200):
        try:
            sockets.append(socket.create_connection(("127.0.0.1", one.port), timeout=5))
        except OSError:
            break
    time.sleep(0.2)
    for sock in sockets:
        sock.close()
    time.sleep(0.2)
    assert one.post("/v1/completions", SHORT).status_code == 200


def test_22_a_full_disk_for_the_output_ends_nothing(model, tmp_path):
    one = ServerProcess(model, tmp_path, "--log-level", "info", limits="exec >/dev/full 2>/dev/full")
    try:
        end = time.monotonic() + 30
        while one.is_port_free() and time.monotonic() < end and one.process.poll() is None:
            time.sleep(0.02)
        assert one.post("/v1/completions", SHORT).status_code == 200
        one.signal(signal.SIGTERM)
        assert one.wait(10) == 0
    finally:
        one.stop()


def test_7_a_killed_server_s_port_can_be_taken_at_once_and_by_one_only(model, tmp_path):
    one = ServerProcess(model, tmp_path).wait_until_ready()
    readers = streams(one.port, 4)
    one.signal(signal.SIGKILL)
    one.wait(5)
    (tmp_path / "third").mkdir()
    two = ServerProcess(model, tmp_path, "--port", str(one.port))
    try:
        two.wait_until_ready()
        three = ServerProcess(model, tmp_path / "third", "--port", str(one.port))
        assert three.wait(20) == 1 and f"in use by process {two.process.pid}" in three.err.read_text()
    finally:
        two.stop()
    for reader in readers:
        reader.close()


def test_half_a_head_is_not_waited_for_for_ever(model):
    """A slow head meets the protocol's timer; in-process, so that ten seconds need not pass."""
    import asyncio

    import uvicorn

    from headrace.server.http import bounded_protocol
    from headrace.server.settings import Settings

    async def work():
        limits = Settings(model_names=("x",), header_timeout_s=0.2)
        config = uvicorn.Config(lambda *a: None, http=bounded_protocol(limits), lifespan="off", log_config=None, port=0)
        config.load()
        loop = asyncio.get_running_loop()
        state = uvicorn.server.ServerState()
        listener = await loop.create_server(lambda: config.http_protocol_class(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\nx-slow: ")
        told = await asyncio.wait_for(reader.read(), 2)
        writer.close()
        listener.close()
        return told

    assert asyncio.run(work()).startswith(b"HTTP/1.1 408")


def test_a_body_that_never_ends_is_refused_before_it_is_all_read(server):
    one = server("--max-body-bytes", "100000").wait_until_ready()
    parts = (b"x" * 10_000 for _ in range(10_000))
    headers = {"content-type": "application/json"}
    for content in (parts, b"x" * 200_000):
        try:
            response = httpx.post(f"{one.url}/v1/completions", content=content, headers=headers, timeout=10)
        except httpx.WriteError:
            continue
        assert response.status_code == 413 and response.headers["connection"] == "close"
    assert sum(1 for _ in parts) > 9_000
