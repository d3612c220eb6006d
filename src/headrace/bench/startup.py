"""How long an engine takes from nothing to its first token: processes of their own, one after the other.

Run as a program, this module is such a process: `python -m headrace.bench.startup KEYWORDS STARTED` with the engine's
keywords as JSON and the monotonic second at which it was started; it prints its phases as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.words.errors import EngineError, HeadraceError

PHASES = ("interpreter_s", "import_s", "load_s", "first_token_s", "total_s")
"""Until Python ran, until Headrace was imported, until the model was ready, until it said something; and all."""
MAX_CAUSE_CHARS = 300


def startup(
    keywords: Mapping[str, Any], num_rounds: int, tell: Callable[[object], None] = lambda done: None
) -> dict[str, Any]:
    """Every phase in milliseconds, over the rounds. The first round may find the files on disk, the others in memory:
    it stands apart. Raises EngineError with what the process complained of."""
    from headrace.bench.load import spread

    rounds = []
    for i in range(num_rounds):
        rounds.append(one(keywords))
        tell(i)
    return {
        "model": keywords["model"],
        "rounds": num_rounds,
        "first_ms": {phase[:-2]: 1e3 * rounds[0][phase] for phase in PHASES},
        **{f"{phase[:-2]}_ms": spread([found[phase] for found in rounds]) for phase in PHASES},
    }


def one(keywords: Mapping[str, Any]) -> dict[str, float]:
    """The phases of one process, in seconds."""
    command = [sys.executable, "-m", "headrace.bench.startup", json.dumps(dict(keywords)), repr(time.monotonic())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it gave {done.returncode}"]
        raise EngineError(f"the engine did not start: {lines[-1][:MAX_CAUSE_CHARS]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(keywords: dict[str, Any], started_s: float) -> dict[str, float]:
    marks = [started_s, time.monotonic()]
    from headrace.llm import LLM
    from headrace.words.params import SamplingParams

    marks.append(time.monotonic())
    with LLM(**keywords) as llm:
        marks.append(time.monotonic())
        first = {"prompt_token_ids": [llm.llm_engine.engine.model.vocab_size // 2]}
        llm.generate(first, SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
        marks.append(time.monotonic())
    spans = [after - before for before, after in zip(marks, marks[1:], strict=False)]
    return dict(zip(PHASES, [*spans, marks[-1] - marks[0]], strict=True))


def main() -> int:
    try:
        print(json.dumps(child(json.loads(sys.argv[1]), float(sys.argv[2]))))
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
