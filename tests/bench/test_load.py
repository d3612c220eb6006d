"""The load generator against a small server that answers as it is told."""

import asyncio
import json

import pytest

from headrace.bench.client import Target, Timed
from headrace.bench.load import Goals, Load, bodies, run, spread, starts_s, summary
from headrace.cli.app import run as command
from headrace.cli.bench import read_goals
from headrace.cli.bench_table import table
from headrace.words.errors import ConfigError

SMALL = Load("m", num_prompts=6, input_len=4, output_len=3)


def event(value) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def piece(text):
    return event({"choices": [{"text": text}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
GOOD = [piece("a"), piece("b"), piece("c"), USAGE, b"data: [DONE]\n\n"]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Peer:
    """Counts who is there at once; answers every request with the same parts, 5 ms apart."""

    def __init__(self, parts=GOOD, head=HEAD):
        self.parts, self.head = parts, head
        self.bodies, self.num_open, self.most_open = [], 0, 0

    async def answer(self, reader, writer):
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(self.head)
        for part in self.parts:
            await asyncio.sleep(0.005)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part) if b"chunked" in self.head else part)
        if b"chunked" in self.head:
            writer.write(b"0\r\n\r\n")
        self.num_open -= 1
        writer.close()


def against(peer, load=SMALL):
    async def work():
        server = await asyncio.start_server(peer.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        result = await run(Target(f"http://127.0.0.1:{port}", "/v1/completions"), load, lambda timed: None)
        server.close()
        return result

    return asyncio.run(work())


def test_every_request_is_timed_and_counted():
    peer = Peer()
    done, seconds = against(peer)
    result = summary(done, seconds)
    assert (result["completed"], result["failed"]) == (6, 0)
    assert result["total_input_tokens"] == 24 and result["total_output_tokens"] == 18
    assert result["output_throughput"] == pytest.approx(18 / seconds)
    for timed in done:
        assert 0.004 < timed.first_s < timed.last_s and len(timed.gaps_s) == 2
        assert timed.per_token_s == pytest.approx(sum(timed.gaps_s) / 2)
    assert all(body["stream"] and body["max_tokens"] == 3 and body["ignore_eos"] for body in peer.bodies)


def test_a_closed_loop_has_no_more_at_once_than_allowed():
    peer = Peer()
    against(peer, Load("m", num_prompts=9, max_at_once=3))
    assert len(peer.bodies) == 9 and peer.most_open == 3


def test_pieces_that_are_cut_anywhere_are_put_together():
    whole = b"".join(GOOD)
    done, _ = against(Peer([whole[i : i + 7] for i in range(0, len(whole), 7)]), Load("m", num_prompts=1))
    assert done[0].error is None and done[0].num_output_tokens == 3 and len(done[0].gaps_s) == 2


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (Peer([b'{"error": 1}'], b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\r\n"), "HTTP HTTP/1.1 503"),
        (Peer([piece("a"), event({"error": {"message": "it broke"}})]), "it broke"),
        (Peer([USAGE]), "no text came"),
    ],
)
def test_a_request_that_fails_says_how_and_counts_for_nothing(peer, said):
    done, seconds = against(peer)
    result = summary(done, seconds)
    assert result["failed"] == 6 and result["output_throughput"] == 0 and said in result["errors"][0]


def test_a_seed_sends_the_same_requests_at_the_same_times():
    load = Load("m", num_prompts=200, rate_per_s=50, seed=3)
    assert list(bodies(load)) == list(bodies(load)) and list(starts_s(load)) == list(starts_s(load))
    times = list(starts_s(load))
    assert times == sorted(times) and 2.5 < times[-1] < 5.5
    assert list(starts_s(Load("m", num_prompts=3))) == [0.0, 0.0, 0.0]


def test_goodput_counts_who_met_every_goal():
    def timed(first_s, last_s, error=None):
        return Timed(first_s=first_s, last_s=last_s, num_output_tokens=11, error=error)

    done = [timed(0.1, 1.1), timed(0.3, 1.3), timed(0.1, 2.1), timed(0.1, 0.2, "broken")]
    goals = read_goals(["ttft:200", "tpot:150"])
    assert goals == Goals(first_s=0.2, per_token_s=0.15)
    assert summary(done, 2.0, goals)["request_goodput"] == 0.5
    for text in ("ttft", "speed:5", "ttft:soon"):
        with pytest.raises(ConfigError, match="goodput"):
            read_goals([text])


def test_percentiles_are_of_nearest_rank_in_milliseconds():
    assert spread([i / 1000 for i in range(1, 101)] + [None]) == {"mean": 50.5, "p50": 50, "p90": 90, "p99": 99}
    assert spread([]) == {}


def test_the_command_prints_json_and_fails_when_a_request_does(capsys):
    code = command(["bench", "serve", "--base-url", "http://127.0.0.1:1", "--num-prompts", "2", "--json"])
    assert code == 1 and json.loads(capsys.readouterr().out)["failed"] == 2


def test_a_server_that_answers_nothing_is_one_line_and_no_table(capsys):
    code = command(["bench", "serve", "--url", "http://127.0.0.1:1", "--num-prompts", "2"])
    out, err = capsys.readouterr()
    assert (code, out) == (1, "") and err.startswith("headrace: http://127.0.0.1:1 answered none of 2 requests: Connec")


def test_a_table_has_the_measures_that_were_made_and_good_requests_where_there_are_goals():
    found = summary([Timed(num_output_tokens=1, first_s=0.1, last_s=0.1)], 1.0)
    assert "good ones" not in table(found) and "1.00 good ones" in table(found, has_goals=True)
    rows = [line.split("  ")[0] for line in table(found).splitlines()[3:]]
    assert rows == ["first token (TTFT)", "whole request"]
