"""Commands over a fake model: what goes to stdout, what to stderr, and with which exit code."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from tests.engine import fakes
from tests.engine.fakes import FakeExecutor

from headrace.cli import options
from headrace.cli.app import run
from headrace.llm import LLM
from headrace.words.config import engine_config
from headrace.words.errors import ModelError
from headrace.words.params import SamplingParams

ANSWER = "ok then"


def speaking(text: str = ANSWER, **hooks) -> FakeExecutor:
    """A model that answers every prompt with `text`."""
    tokens = [*text.encode(), fakes.EOS]

    def script(history, admission):
        return tokens[min(len(history) - admission.num_prompt_tokens, len(tokens) - 1)]

    return FakeExecutor(script, **hooks)


class Opener:
    """Opens fake models and remembers what was asked."""

    def __init__(self, executor: FakeExecutor | None = None, **engine) -> None:
        self.executor = executor or speaking()
        self.engine = {"max_model_len": 256, "max_num_batched_tokens": 256} | engine
        self.keywords: dict = {}

    def __call__(self, **keywords) -> LLM:
        self.keywords = keywords
        engine_config(**keywords)
        return LLM.from_engine(fakes.engine(self.executor, **self.engine))


@pytest.fixture
def cli(capsys):
    """Runs a command line; gives (exit code, stdout, stderr)."""

    def call(*arguments: str, opener: Opener | None = None):
        code = run(arguments, opener or Opener())
        return code, *capsys.readouterr()

    return call


def test_one_answer_is_text_on_stdout_and_speed_on_stderr(cli):
    code, out, err = cli("generate", "hello")
    assert (code, out) == (0, f"{ANSWER}\n")
    assert "prompt tokens, 8 output tokens" in err and "tok/s" in err and "time to first token" in err


def test_one_of_a_thing_is_said_so(cli):
    assert "8 output tokens" in cli("generate", "hello")[2]
    assert "1 output token, " in cli("generate", "hello", "--max-tokens", "1")[2]
    sizes = ("--num-rounds", "1", "--num-warmups", "0", "--input-len", "5", "--output-len", "3")
    out = cli("bench", "latency", *sizes, opener=Opener(max_num_seqs=1))[1]
    assert " 1 thread, up to 1 sequence\n1 request in" in out


def test_a_prompt_is_a_users_message_unless_it_is_raw(cli):
    rendered, raw = Opener(), Opener()
    cli("generate", "hello", "--system", "be brief", opener=rendered)
    cli("generate", "hello", "--raw", opener=raw)
    prompts = [opener.executor.plans[0].admissions[0].token_ids for opener in (rendered, raw)]
    text = fakes.toys.bytewise().decode(prompts[0], skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert fakes.toys.bytewise().decode(prompts[1]) == "hello"


def test_a_model_without_a_template_continues_the_text(cli):
    opener = Opener(others={"chat_template": None})
    assert cli("generate", "hello", opener=opener)[0] == 0
    assert fakes.toys.bytewise().decode(opener.executor.plans[0].admissions[0].token_ids) == "hello"


def test_several_answers_stand_under_their_prompts(cli):
    code, out, _ = cli("generate", "one", "two", "--n", "2")
    assert code == 0
    assert out.split("\n\n")[:4] == [f"> {prompt} [{i}]\n{ANSWER}" for prompt in ("one", "two") for i in (0, 1)]


def test_json_is_all_there_is_on_stdout(cli):
    code, out, _ = cli("generate", "hello", "--json", "--logprobs", "1", "--seed", "7")
    answer = json.loads(out)
    choice = answer["results"][0]["outputs"][0]
    assert code == 0 and answer["model"] == "smollm2-135m"
    assert (choice["text"], choice["finish_reason"], choice["seed"]) == (ANSWER, "stop", 7)
    assert len(choice["logprobs"]) == 8 and choice["logprobs"][0]["111"]["token"] == "o"
    assert choice["timeline"][0]["target"] == "waiting"
    assert answer["speed"]["num_output_tokens"] == 8


def test_explain_tells_the_life_of_the_request(cli):
    _, out, err = cli("generate", "hello", "--explain")
    assert out == f"{ANSWER}\n" and "waiting → running" in err and "ended: stop" in err


def test_the_prompt_may_come_from_standard_input(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert cli("generate", "-")[:2] == (0, f"{ANSWER}\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert cli("generate", "-") == (1, "", "headrace: prompt: standard input is empty; write the prompt to it\n")


def test_sampling_options_reach_the_request(cli):
    opener = Opener()
    cli("generate", "hello", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "5", "--max-tokens", "3",
        "--stop", "x", "--stop", "y", "--seed", "4", "--ignore-eos", "--no-skip-special-tokens",
        opener=opener)  # fmt: skip
    admission = opener.executor.plans[0].admissions[0]
    sampling = admission.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 5, 3)
    assert (sampling.stop, sampling.ignore_eos, sampling.skip_special_tokens) == (("x", "y"), True, False)
    assert admission.seed == 4


def test_the_checkpoints_defaults_hold_for_what_is_not_given(cli):
    opener = Opener(others={"sampling_defaults": {"temperature": 0.25, "max_tokens": 5}})
    cli("generate", "hello", "--top-k", "3", opener=opener)
    sampling = opener.executor.plans[0].admissions[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.25, 3, 5)


def test_where_nobody_says_otherwise_an_answer_is_calm_and_has_256_tokens_at_most(cli):
    opener = Opener(speaking("x" * 400), max_model_len=512)
    cli("generate", "hello", opener=opener)
    sampling = opener.executor.plans[0].admissions[0].sampling
    assert (sampling.max_tokens, sampling.temperature) == (256, 0.2)


def test_engine_options_have_the_names_of_engine_config(cli):
    opener = Opener()
    cli("generate", "hello", "-m", "some/model", "--dtype", "float32", "--max-model-len", "64",
        "--kv-cache-memory-bytes", "1000000", "--no-enable-prefix-caching", "--engine-seed", "3",
        "--scheduling-policy", "fair", "--tensor-parallel-size", "1", "--enforce-eager", opener=opener)  # fmt: skip
    assert opener.keywords == {
        "model": "some/model",
        "dtype": "float32",
        "max_model_len": 64,
        "kv_cache_memory_bytes": 1_000_000,
        "enable_prefix_caching": False,
        "seed": 3,
        "scheduling_policy": "fair",
        "tensor_parallel_size": 1,
        "enforce_eager": True,
    }


def test_every_option_has_a_help_text():
    assert all(p.name for p in options.engine_options())
    assert set(options.SAMPLING_HELP) <= set(SamplingParams.__dataclass_fields__)
    shown = [text for text in (*options.ENGINE_HELP.values(), *options.SAMPLING_HELP.values())]
    assert all(text and text[0].islower() or text[0].isdigit() for text in shown)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["generate", "hi", "--max-tokn", "5"], "No such option: --max-tokn; did you mean '--max-tokens'?"),
        (["generate", "hi", "--n", "many"], "Invalid value for '--n': must be a valid integer\n"),
        (["bench", "latency", "--batch-size", "0"], "Invalid value for '--batch-size': must be greater than or"),
        (["generate", "hi", "--scheduling-policy", "lottery"], "Invalid value for '--scheduling-policy': 'lottery' is"),
        (["generate", "hi", "--kv-cache-dtype", "fp8"], "Invalid value for '--kv-cache-dtype': 'fp8' is not"),
        (["generate"], "Missing argument 'PROMPT"),
        (["genrate", "hi"], "No such command 'genrate'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli, arguments, line):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and err.startswith(f"headrace: {line}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--temperature", "-1"], "temperature: must be from 0 to 100, got -1.0"),
        (["--max-tokens", "0"], "max_tokens: must be at least 1, got 0; 0 is for scoring"),
        (["--tensor-parallel-size", "2"], "tensor_parallel_size: 2 is not supported"),
        (["--logprobs", "2"], "logprobs: are not shown without --json"),
        (["--tensor-parallel-size", "²"], "tensor_parallel_size: '²' is not supported"),
        (["--tensor-parallel-size=--5"], "tensor_parallel_size: '--5' is not supported"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_1(cli, arguments, line):
    code, out, err = cli("generate", "hi", *arguments)
    assert (code, out) == (1, "") and err.startswith(f"headrace: {line}") and err.count("\n") == 1


def failing(error: Exception):
    def opener(**keywords):
        raise error

    return opener


def test_errors_have_no_traceback_unless_the_log_level_is_debug(cli):
    broken = ModelError("model.gguf", "the header ends\nearly")
    assert cli("generate", "hi", opener=failing(broken)) == (1, "", "headrace: model.gguf: the header ends early\n")
    err = cli("generate", "hi", "--log-level", "debug", opener=failing(broken))[2]
    assert "Traceback" in err and err.endswith("headrace: model.gguf: the header ends early\n")


def test_a_file_that_fails_is_named(cli, tmp_path):
    with pytest.raises(OSError) as caught:
        (tmp_path / "nothing").read_text()
    _, _, err = cli("generate", "hi", opener=failing(caught.value))
    assert err == f"headrace: input or output failed: No such file or directory ({tmp_path / 'nothing'})\n"


def test_a_fault_of_ours_is_one_line_too(cli):
    code, _, err = cli("generate", "hi", "--log-level", "warning", opener=failing(KeyError("x")))
    assert code == 1 and err == "headrace: internal error: KeyError: 'x'; run again with --log-level debug\n"


def test_a_prompt_that_never_fits_is_told_with_its_reason_and_exit_code_1(cli):
    code, out, err = cli("generate", "x" * 300, "--raw")
    assert (code, out) == (1, "") and "ended with prompt_length_exceeded: the prompt has 300 tokens" in err


def test_the_version_is_printed(cli):
    code, out, _ = cli("--version")
    assert code == 0 and out.startswith("headrace ") and out[9].isdigit()


def test_without_arguments_the_commands_are_listed(cli):
    _, out, err = cli()
    assert "generate" in out + err and "chat" in out + err


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_lists_options_by_group_where_there_is_room(cli, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = cli(command, "--help")
    assert code == 0 and "--max-tokens" in out and "Engine" in out and "Sampling" in out
    assert "--tensor-parallel-size" not in out


def interrupting(step: int) -> FakeExecutor:
    def on_forward(plan):
        if plan.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return speaking("x" * 50, on_forward=on_forward)


def test_ctrl_c_stops_an_answer_with_exit_code_130(cli):
    code, out, err = cli("generate", "hello", opener=Opener(interrupting(4)))
    assert code == 130 and out.startswith("xxx") and len(out) < 10 and "ended with abort" in err
    assert cli("generate", "hello", "there", opener=Opener(interrupting(4)))[0] == 130


def talk(cli, monkeypatch, lines: list[str], opener: Opener | None = None, *arguments: str):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return cli("chat", *arguments, opener=opener)


def prompts(opener: Opener) -> list[str]:
    admissions = [admission for plan in opener.executor.plans for admission in plan.admissions]
    return [fakes.toys.bytewise().decode(a.token_ids, skip_special_tokens=False) for a in admissions]


def test_a_chat_remembers_what_was_said_until_it_is_reset(cli, monkeypatch):
    opener = Opener()
    lines = ["hello", "", "again", "/reset", "new", "/exit", "never"]
    code, out, err = talk(cli, monkeypatch, lines, opener, "my/model")
    assert code == 0 and out == f"{ANSWER}\n" * 3 and err.count("tok/s") == 3
    first, second, third = prompts(opener)
    assert second == f"{first}{ANSWER}<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n"
    assert third == first.replace("hello", "new")
    assert opener.keywords["model"] == "my/model"


def test_the_end_of_the_input_ends_a_chat(cli, monkeypatch):
    assert talk(cli, monkeypatch, ["hello"])[:2] == (0, f"{ANSWER}\n")


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(cli, monkeypatch):
    opener = Opener(interrupting(4))
    code, out, _ = talk(cli, monkeypatch, ["hello", "again"], opener, "--max-tokens", "9")
    first, second = out.splitlines()
    assert code == 0 and 2 <= len(first) < 9 and second == "x" * 9
    assert f"assistant\n{first}<|im_end|>" in prompts(opener)[1]


def test_a_turn_that_cannot_be_answered_is_told_and_forgotten(cli, monkeypatch):
    opener = Opener()
    code, out, err = talk(cli, monkeypatch, ["y" * 300, "/what", "hello"], opener, "--system", "be brief")
    assert code == 0 and out == f"{ANSWER}\n"
    assert "prompt_length_exceeded" in err and "/reset forgets" in err
    assert prompts(opener)[0].startswith("<|im_start|>system\nbe brief") and "yyy" not in prompts(opener)[0]


def test_a_chat_needs_a_template(cli, monkeypatch):
    code, _, err = talk(cli, monkeypatch, ["hello"], Opener(others={"chat_template": None}))
    assert code == 1 and "chat_template: this model has none" in err


def test_the_program_starts_without_loading_arithmetic():
    code = "import sys; from headrace.cli.app import run; run(['--version']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[-1] == "False", done.stderr


def modules_of(*arguments: str) -> set[str]:
    """What a process has imported when that command line is understood."""
    code = f"import sys; from headrace.cli.app import make_app; make_app({list(arguments)}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    return set(done.stdout.split())


def test_a_command_imports_no_other_command_and_nothing_that_it_may_not_need():
    found = modules_of("serve", "--port", "0")
    assert "headrace.cli.serve" in found
    assert not found & {"headrace.cli.bench", "headrace.cli.chat", "headrace.cli.doctor", "rich.table", "fastapi"}


def test_what_is_no_command_is_told_with_all_of_them(cli):
    code, out, _ = cli("--help")
    words = ("generate", "chat", "run-batch", "serve", "top", "bench", "models", "doctor")
    assert code == 0 and all(word in out for word in words)
    code, _, err = cli("serv")
    assert code == 2 and "serve" in err


@pytest.mark.parametrize("command", ["serve", "generate", "run-batch", "bench throughput"])
@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_the_help_shows_the_names_of_options_whole(cli, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = cli(*command.split(), "--help")
    assert code == 0 and "--max-num-batched-tokens" in out and "…" not in out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_help_shows_options_under_their_groups_in_any_width(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = [line.strip(" ╭─╮:") for line in cli("serve", "--help")[1].splitlines()]
    groups = [lines.index(heading) for heading in ("Options", "Server", "Scheduling", "Model", "Cache", "Queue")]
    named = [next(i for i, line in enumerate(lines) if option in line) for option in ("--port", "--max-num-seqs")]
    assert groups[1] < named[0] < groups[2] < named[1] < groups[3]
    assert "Engine" in [line.strip(" ╭─╮:") for line in cli("bench", "throughput", "--help")[1].splitlines()]


def test_a_missing_prompt_is_told_where_it_may_stand(cli):
    code, out, err = cli("generate", "--json")
    assert (code, out) == (2, "") and "Missing argument 'PROMPT...'. Write it on the command line, or - to" in err
