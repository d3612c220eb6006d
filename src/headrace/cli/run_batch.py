"""`headrace run-batch`: a file of requests to a file of answers."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.model import LogLevelOption, ModelOption, set_log_level
from headrace.cli.options import Options, engine_keywords, engine_options, takes
from headrace.cli.serve import shown_name
from headrace.words.config import DEFAULT_MODEL, EngineConfig, engine_config


@takes(engine=engine_options)
def run_batch(
    source: Annotated[Path, typer.Option("--input", "-i", help="File of requests, one a line, as OpenAI's batches.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of answers; what it has is not done again.")],
    model: ModelOption = DEFAULT_MODEL,
    at_once: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 512,
    log_level: LogLevelOption = None,
    *,
    engine: Options,
) -> int:
    """Answer the requests of a file, and go on where an earlier run stopped.

    Each line is {"custom_id", "method", "url", "body"}. Exit code 1 when a request failed.
    """
    set_log_level(log_level)
    return run(engine_config(**engine_keywords(model, engine)), source, output, at_once)


def run(asked: EngineConfig, source: Path, output: Path, at_once: int) -> int:
    from headrace.engine.build import build_engine
    from headrace.engine.host import AsyncLLM
    from headrace.engine.progress import terminal_progress
    from headrace.server.app import make_app
    from headrace.server.batch import Batch, check_files
    from headrace.server.service import Service
    from headrace.server.settings import Settings

    check_files(source, output)
    with terminal_progress() as progress:
        llm = AsyncLLM(build_engine(replace(asked, max_num_queued_requests=None), progress))
    service = Service(llm, Settings(model_names=(shown_name(asked.model), asked.model)))
    try:
        with Progress(source) as bar:
            counts = asyncio.run(Batch(make_app(service), source, output, at_once, bar.tell).run())
    finally:
        service.close()
        llm.shutdown()
    earlier = f", {counts.skipped} done earlier" if counts.skipped else ""
    print(f"headrace: {counts.done} requests done, {counts.failed} of them failed{earlier}", file=sys.stderr)
    return 1 if counts.failed else 0


class Progress:
    """A bar on stderr if that is a terminal."""

    def __init__(self, source: Path) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        self._bars = Bars(console=console, disable=not console.is_terminal, transient=True)
        with source.open("rb") as lines:
            total = sum(1 for line in lines if line.strip())
        self._task = self._bars.add_task("requests", total=total)

    def tell(self, num_done: int, num_failed: int) -> None:
        text = f"requests ({num_failed} failed)" if num_failed else "requests"
        self._bars.update(self._task, completed=num_done, description=text)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._bars.stop()
