"""The command line of the server: vLLM's flags, what they become, and what is refused in one line."""

import pytest

from headrace.cli import serve as module
from headrace.cli.app import run
from headrace.server.ports import bind
from headrace.words.errors import ConfigError

NEUTRAL = (
    "--tokenizer x --revision r --dtype float32 --max-model-len 64 --gpu-memory-utilization 0.5 "
    "--kv-cache-memory-bytes 1000000 --max-num-seqs 4 --max-num-batched-tokens 128 --tensor-parallel-size 1 -tp 1 "
    "--pipeline-parallel-size 1 --data-parallel-size 1 --enable-prefix-caching --load-format auto --enforce-eager "
    "--seed 5 --api-key k --chat-template x{{}} --shutdown-timeout 3 --max-num-queued-reqs 7 --uvicorn-log-level info "
    "--nnodes 1 --node-rank 0 --distributed-executor-backend mp --served-model-name a --served-model-name b "
    "--host 0.0.0.0 --port 9"
).split()


@pytest.fixture
def started(monkeypatch):
    """Catches what would be served."""
    caught = []
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    monkeypatch.setattr("headrace.server.run.serve", lambda asked, settings: caught.append((asked, settings)) or 0)
    monkeypatch.setattr("headrace.server.logs.set_up", lambda level, form: None)
    return caught


def test_vllm_s_flags_become_the_engine_s_and_the_server_s(started):
    assert run(["serve", "some/model", *NEUTRAL]) == 0
    ((asked, settings),) = started
    assert asked.model == "some/model" and asked.seed == 5 and asked.max_num_queued_requests == 7
    assert asked.max_model_len == 64 and asked.dtype == "float32" and asked.enable_prefix_caching
    assert settings.model_names == ("a", "b") and settings.api_keys == ("k",)
    assert (settings.host, settings.port, settings.shutdown_timeout_s) == ("0.0.0.0", 9, 3)


def test_without_flags_it_is_the_default_model_on_this_machine_with_a_bounded_queue(started):
    assert run(["serve"]) == 0
    ((asked, settings),) = started
    assert asked.model == "smollm2-135m" and settings.model_names == ("smollm2-135m",)
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8000, ())
    assert (asked.max_num_queued_requests, asked.max_num_queued_tokens) == (1_024, 1_000_000)


def test_a_model_s_folder_is_not_told_to_clients(started, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_API_KEY", "from the environment")
    assert run(["serve", "--model", str(tmp_path / "llama")]) == 0
    ((asked, settings),) = started
    assert asked.model == str(tmp_path / "llama") and settings.model_names == ("llama",)
    assert settings.api_keys == ("from the environment",)


@pytest.mark.parametrize("flag", [*module.NOT_BUILT, "tensor_parallel_size", "tp", "trust_remote_code"])
def test_what_is_not_built_is_one_line(started, flag, capsys):
    spelled = f"-{flag}" if len(flag) == 2 else f"--{flag.replace('_', '-')}"
    if flag in ("enable_auto_tool_choice", "enable_lora", "trust_remote_code"):
        arguments = [spelled]
    else:
        arguments = [spelled, "3"]
    assert run(["serve", *arguments]) == 1 and not started
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1 and (flag in text or flag == "tp")


def test_a_misspelt_flag_is_told_the_nearest_one(started, capsys):
    assert run(["serve", "--max-modle-len", "5"]) == 2
    assert "did you mean '--max-model-len'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--port", "-1"], ["--shutdown-timeout", "nan"], ["--step-timeout", "-3"]])
def test_numbers_below_zero_are_refused(started, arguments, capsys):
    assert run(["serve", *arguments]) == 1 and "must be at least 0" in capsys.readouterr().err


def shown(capsys, *arguments):
    assert run(["serve", *arguments]) == 0
    return capsys.readouterr().out


def test_the_help_of_a_group_lists_its_flags_and_no_others(capsys):
    text = shown(capsys, "--help=cache")
    assert "--block-size" in text and "--kv-cache-memory-bytes" in text and "--port" not in text
    assert "--port" in shown(capsys, "--help=Server") and "--max-num-seqs" in shown(capsys, "--help=scheduling")


def test_the_help_lists_the_flags_of_the_server(capsys):
    assert run(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--served-model-name" in text and "--max-model-len" in text and "--nnodes" not in text


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_is_none_is_refused_and_not_cut_to_another(port):
    with pytest.raises(ConfigError, match=r"^port: must be from 0 \(a free one\) to 65535, got"):
        bind("127.0.0.1", port)
