"""`headrace run-batch`: a file of requests to a file of answers."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.bar import Bar
from headrace.cli.model import LogLevelOption, ModelOption, set_log_level
from headrace.cli.options import Options, engine_keywords, engine_options, takes
from headrace.cli.report import plural
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
        with Bar(num_lines(source)) as bar:
            counts = asyncio.run(Batch(make_app(service), source, output, at_once, bar.show).run())
    finally:
        service.close()
        llm.shutdown()
    earlier = f", {counts.skipped} done earlier" if counts.skipped else ""
    print(f"headrace: {plural(counts.done, 'request')} done, {counts.failed} of them failed{earlier}", file=sys.stderr)
    return 1 if counts.failed else 0


def num_lines(source: Path) -> int:
    """Those that hold something."""
    with source.open("rb") as lines:
        return sum(1 for line in lines if line.strip())
