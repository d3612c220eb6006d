"""Progress is drawn on a terminal's stderr, and nowhere else."""

import numpy as np
from tests.engine import fakes

from headrace.engine.progress import CountedWeights, terminal_progress
from headrace.llm import LLM, TerminalBar
from headrace.ops.base import Blocks
from headrace.words.params import SamplingParams


def test_the_bar_of_a_call_is_drawn_on_a_terminal_and_gone_afterwards(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    LLM.from_engine(fakes.engine()).generate(["a"] * 3, SamplingParams(max_tokens=2))
    out, err = capsys.readouterr()
    assert out == "" and "generate" in err and "3/3" in err


def test_the_bar_tells_the_speed(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    model = LLM.from_engine(fakes.engine())
    bar = TerminalBar(2, model.llm_engine)
    model.generate(["a"], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    bar._drawn_s -= 1
    bar.update(1)
    bar.close()
    assert "tok/s" in capsys.readouterr().err


def test_download_and_load_have_a_bar_each_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with terminal_progress() as progress:
        for what in ("download", "load"):
            progress(what, 50, 100)
            progress(what, 100, 100)
    err = capsys.readouterr().err
    assert "download" in err and "load" in err and "100/100 bytes" in err


def test_without_a_terminal_nothing_is_drawn(monkeypatch, capsys):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with terminal_progress() as progress:
        progress("load", 1, 2)
    assert capsys.readouterr() == ("", "")


class Source:
    nbytes = 48

    def names(self):
        return ("a", "b")

    def shape(self, name):
        return (6,)

    def get(self, name):
        return np.zeros(6, np.float32)

    def blocks(self, name, is_turned=False):
        return None if name == "a" else Blocks("Q8_0", np.zeros(24, np.uint8), (1, 6), None, lambda: self.get(name))


def test_weights_are_counted_as_they_are_read():
    heard = []
    weights = CountedWeights(Source(), lambda *told: heard.append(told))
    assert [weights.get(name).size for name in weights.names()] == [6, 6] and weights.shape("a") == (6,)
    assert heard == [("load", 24, 48), ("load", 48, 48)]


def test_blocks_that_stay_quantized_are_counted_too():
    heard = []
    weights = CountedWeights(Source(), lambda *told: heard.append(told))
    assert weights.blocks("a") is None and weights.blocks("b") is not None
    assert heard == [("load", 24, 48)]
