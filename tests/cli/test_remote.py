"""generate, chat and top against a running server: one look and feel with a model of this process."""

import io
import json
import signal
import sys

import pytest
from tests.cli.test_terminal import Terminal
from tests.page.site import served

from headrace.cli import gauges
from headrace.cli.app import run
from headrace.cli.remote import Server
from headrace.cli.top import bars
from headrace.words.errors import ConfigError, EngineError


@pytest.fixture(scope="module")
def site():
    with served() as site:
        yield site


@pytest.fixture
def cli(capsys):
    """Runs a command line; gives (exit code, stdout, stderr)."""

    def call(*arguments: str):
        code = run(arguments, opener=None)
        return code, *capsys.readouterr()

    return call


def test_an_answer_of_a_server_is_text_on_stdout_and_speed_on_stderr(cli, site):
    code, out, err = cli("generate", "hello", "--url", site.url, "--system", "be brief")
    assert code == 0 and out.endswith(" to: hello\n")
    assert "output tokens" in err and "tok/s" in err and "time to first token" in err
    assert "system\nbe brief" in site.heard[-1]


def test_json_of_a_server_has_the_shape_of_an_engines(cli, site):
    code, out, _ = cli("generate", "hello", "again", "--json", "--url", f"{site.url}/v1", "--seed", "7")
    told = json.loads(out)
    assert code == 0 and len(told["results"]) == 2
    first = told["results"][0]
    assert first["prompt"] == "hello" and first["prompt_token_ids"] and first["outputs"][0]["token_ids"]
    assert first["outputs"][0]["finish_reason"] == "stop" and told["speed"]["num_output_tokens"] > 20


def test_several_prompts_are_told_apart_and_choices_are_numbered(cli, site):
    _, out, _ = cli("generate", "one", "two", "--url", site.url)
    assert out.index("> one") < out.index("to: one") < out.index("> two") < out.index("to: two")
    _, out, _ = cli("generate", "one", "--n", "2", "--url", site.url)
    assert "> one [0]" in out and "> one [1]" in out


def test_a_life_of_a_server_is_explained(cli, site):
    _, _, err = cli("generate", "hello", "--explain", "--max-tokens", "3", "--url", site.url)
    assert "schedule: admitted" in err and "ended: length" in err and "seed" in err


def test_raw_text_is_continued_without_the_template(cli, site):
    code, _, err = cli("generate", "hello", "--raw", "--max-tokens", "2", "--url", site.url)
    assert code == 0 and site.heard[-1] == "hello"
    assert "2 output tokens" in err and not err.startswith("0 prompt tokens"), "the prompt's tokens are counted, too"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--dtype", "float32"], "dtype: is the engine's"),
        (["--logprobs", "2"], "logprobs: are not shown"),
        (["--model", "other"], "the model 'other' does not exist"),
        (["--temperature", "-1"], "temperature"),
        (["--max-tokens", "0"], "max_tokens"),
    ],
)
def test_what_a_server_cannot_do_is_one_line(cli, site, more, told):
    code, out, err = cli("generate", "hello", "--url", site.url, *more)
    assert code == 1 and out == "" and told in err and len(err.splitlines()) == 1


def test_a_server_that_is_not_there_and_an_address_that_is_none_are_told(cli):
    code, _, err = cli("generate", "hello", "--url", "http://127.0.0.1:1")
    assert code == 1 and "no server answers at http://127.0.0.1:1" in err and "headrace serve" in err
    with pytest.raises(ConfigError, match="must be like"):
        Server("ftp://here")


def test_a_key_is_sent_and_a_missing_one_told(cli):
    with served(api_keys=("secret",)) as site:
        assert cli("generate", "hello", "--url", site.url, "--api-key", "secret")[0] == 0
        code, _, err = cli("generate", "hello", "--url", site.url)
        assert code == 1 and "--api-key" in err and "HEADRACE_API_KEY" in err


def test_a_chat_with_a_server_remembers_what_was_said(cli, site, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n/exit\n"))
    code, out, _ = cli("chat", "--url", site.url)
    assert code == 0 and "to: first" in out and "to: second" in out
    assert "user\nfirst<|im_end|>" in site.heard[-1] and "user\nsecond<|im_end|>" in site.heard[-1]


def test_an_answer_of_chat_is_bounded_unless_somebody_says_otherwise(cli, site, monkeypatch):
    asked = []
    monkeypatch.setattr(Server, "chat", lambda self, said, fields: asked.append(fields["max_tokens"]) or iter(()))
    for more in ([], ["--max-tokens", "9"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n/exit\n"))
        cli("chat", "--url", site.url, *more)
    assert asked == [1024, 9]


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_an_answer_of_a_server_is_as_calm_as_one_of_this_process(cli, site, monkeypatch, command):
    def temperature_asked(*more):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        code, _, err = cli(command, *["hello"][: command == "generate"], "--url", site.url, *more)
        assert code == 0, err
        (newest, *_) = Server(site.url).get_json("/v1/requests")["data"]
        return Server(site.url).get_json(f"/v1/requests/{newest['id']}")["data"][0]["temperature"]

    assert temperature_asked() == 0.2
    assert temperature_asked("--temperature", "0.7") == 0.7
    site.service.llm.engine.sampling_defaults["temperature"] = 0.6
    try:
        assert temperature_asked() == 0.6
    finally:
        del site.service.llm.engine.sampling_defaults["temperature"]


def test_a_word_with_a_slash_that_chat_does_not_know_is_named(cli, site, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("/quiet please\n/help\n"))
    code, out, err = cli("chat", "--url", site.url)
    assert (code, out) == (0, "")
    first, second = err.splitlines()
    assert first.startswith("/quiet is no command here; /exit ends") and second.startswith("/exit ends")


def test_ctrl_c_ends_an_answer_and_the_server_forgets_it(site):
    answer = Server(site.url).chat([{"role": "user", "content": "slow please"}], {})
    for _ in range(3):
        next(answer)
    output = answer.throw(KeyboardInterrupt)
    assert output.outputs[0].finish_reason == "abort" and output.finished


def test_a_stream_that_breaks_off_is_no_answer(site, monkeypatch):
    monkeypatch.setattr("headrace.cli.remote._events", lambda response: iter(()))
    with pytest.raises(EngineError, match="ended before the answer"):
        list(Server(site.url).complete("hello", {}))


def test_top_shows_load_and_requests(cli, site):
    cli("generate", "hello", "--url", site.url)
    code, out, _ = cli("top", "--once", "--interval", "0.1", "--url", site.url)
    assert code == 0
    for word in ("running", "KV cache", "prefix hits", "first token", "p99", "chatcmpl-"):
        assert word in out, word
    (first_token,) = [line for line in out.splitlines() if line.strip().startswith("first token")]
    assert "since the start" in out and "–" not in first_token and "ms" in first_token


def test_top_lives_in_a_terminal_until_ctrl_c(site):
    arguments = ["top", "--interval", "0.1", "--url", site.url]
    terminal = Terminal(f"import sys; from headrace.cli.app import run; sys.exit(run({arguments}))", TERM="xterm")
    terminal.read_until("headrace top")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(20) == 0


def test_rates_shares_and_quantiles_are_prometheus_own():
    text = """
# TYPE a counter
a_total{{engine="0"}} {count}
# TYPE t histogram
t_bucket{{le="1"}} {low}
t_bucket{{le="2"}} {high}
t_bucket{{le="+Inf"}} {high}
t_count {high}
t_sum 3
"""
    before = gauges.read_moment(text.format(count=10, low=0, high=0), 5.0)
    now = gauges.read_moment(text.format(count=30, low=2, high=4), 10.0)
    assert gauges.rate("a_total", before, now) == 4 and gauges.rate("a_total", now, before) is None
    assert gauges.share("t_count", "a_total", before, now) == 0.2
    assert gauges.quantile("t", 0.25, before, now) == 0.5 and gauges.quantile("t", 0.75, before, now) == 1.5
    assert gauges.quantile("t", 0.5, now, now) is None
    assert bars([0.0, 4.0, 8.0]).startswith("▁▅█") and bars([]) == "nothing yet"


def test_help_can_be_asked_by_group_by_name_and_by_subject(cli):
    assert "--port" in cli("serve", "--help=server")[1]
    assert "--temperature" in cli("generate", "--help=sampling")[1]
    assert "--kv-cache-memory-bytes" in cli("serve", "--help=cache")[1]
    code, _, err = cli("serve", "--help=sede")
    assert code == 2 and "did you mean 'seed'" in err


def test_a_shell_completes_commands_and_options(cli, monkeypatch):
    for words, found in (("headrace gen", "generate"), ("headrace serve --por", "--port")):
        monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        code, out, _ = cli()
        assert code == 0 and found in out
