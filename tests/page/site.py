"""The page's own server over a model that says what it is asked to: markdown, evil, long, slow, think, or an echo."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import uvicorn
from tests.engine import fakes, toys
from tests.engine.fakes import FakeExecutor
from tests.server.inside import engine

from headrace.engine.host import AsyncLLM
from headrace.server.app import make_app
from headrace.server.flight import FlightRecorder
from headrace.server.service import Service
from headrace.server.settings import Settings
from headrace.words.plan import Admission, StepPlan

FENCE = "```"
MARKDOWN = f"""# Water mills

A mill turns **falling water** into *work*: `power = flow * head`. See [a page](https://example.org/mill).

| part | what it does |
|---|---|
| headrace | leads the water to the wheel |
| tailrace | leads it away |

1. Open the gate.
2. The wheel turns:
   - slowly at first
   - then faster

- [x] built
- [ ] tested

> Nothing is lost but height.

{FENCE}python
def power_w(flow_m3_s: float, head_m: float) -> float:
    \"\"\"Watts without losses.\"\"\"
    return 1000 * 9.81 * flow_m3_s * head_m
{FENCE}

Inline math $P = \\rho g Q h$ costs $5 or $6, and on its own line:

$$\\int_0^T P(t)\\,dt = \\frac{{\\rho g V h}}{{\\eta}}$$

Done.
"""
EVIL = (
    '<img src=x onerror="window.hacked=1"> </script><script>window.hacked=1</script> '
    '[press](javascript:window.hacked=1) ![pixel](https://example.org/pixel.png) <iframe src="https://example.org">\n\n'
    "<svg onload=window.hacked=1>\n\n"
    f'{FENCE}html"><img src=x onerror=window.hacked=1>\n</code></pre><img src=x onerror="window.hacked=1">\n{FENCE}\n\n'
    '$\\href{javascript:window.hacked=1}{x}$ $<img src=x onerror="window.hacked=1">$'
)
LONG = "".join(f"word {i} of **many**; " + ("\n\n" if i % 12 == 11 else "") for i in range(60))[:1000]
THINK = "<think>First I wonder.</think>Then I answer."
TEXTS = {"markdown": MARKDOWN, "evil": EVIL, "long": LONG, "slow": LONG, "think": THINK}
PACES_S = {"slow": 0.02, "long": 0.001}
"""Seconds that a step takes, so that tokens come one by one."""
ROOM = {"max_model_len": 4_096, "max_num_batched_tokens": 4_096, "max_num_seqs": 16}


class Speaker:
    """The script of a fake executor: an answer for each sequence, chosen by the last word that a user said."""

    def __init__(self) -> None:
        self._answers: dict[int, list[int]] = {}
        self._paces_s: dict[int, float] = {}
        self.heard: list[str] = []

    def __call__(self, history: Sequence[int], admission: Admission) -> int:
        if admission.seq_id not in self._answers:
            self._answers[admission.seq_id] = self._answer(admission)
        said = len(history) - admission.num_prompt_tokens
        tokens = self._answers[admission.seq_id]
        return tokens[min(said, len(tokens) - 1)]

    def _answer(self, admission: Admission) -> list[int]:
        prompt = toys.bytewise().decode(admission.token_ids[: admission.num_prompt_tokens], skip_special_tokens=False)
        self.heard.append(prompt)
        asked = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>")[0]
        word = (asked.split() or [""])[0]
        self._paces_s[admission.seq_id] = PACES_S.get(word, 0.0)
        text = TEXTS.get(word, f"Answer {admission.seq_id} to: {asked}")
        return [*text.encode(), fakes.EOS]

    def wait(self, plan: StepPlan) -> None:
        time.sleep(max((self._paces_s.get(segment.seq_id, 0.0) for segment in plan.segments), default=0.0))


class Site(NamedTuple):
    url: str
    service: Service
    heard: list[str]
    """Every prompt as the model saw it."""


@contextmanager
def served(num_blocks: int = 6_000, **settings: object) -> Iterator[Site]:
    """The application on a free port, on a thread of its own; its cache has that many blocks of four tokens."""
    speaker = Speaker()
    made = engine(FakeExecutor(speaker, on_sample=speaker.wait), num_blocks=num_blocks, **ROOM)
    asked = Settings(**{"model_names": ("toy",), **settings})
    flight = FlightRecorder(asked.num_steps)
    flight.attach(made.core)
    llm = AsyncLLM(made)
    service = Service(llm, asked, flight)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(128)
    server = uvicorn.Server(uvicorn.Config(make_app(service), lifespan="off", log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield Site(f"http://127.0.0.1:{sock.getsockname()[1]}", service, speaker.heard)
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        service.close()
        llm.shutdown()
        sock.close()
