"""`headrace bench throughput`, `latency` and `startup`: an engine without a server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.bar import Bar
from headrace.cli.bench_table import SaveOption, finish, head, table, times
from headrace.cli.model import LogLevelOption, ModelOption, open_model
from headrace.cli.options import Options, engine_keywords, engine_options, takes
from headrace.cli.report import plural
from headrace.words.config import DEFAULT_MODEL, engine_config

InputOption = Annotated[int, typer.Option(help="Tokens of a prompt.", min=1)]
OutputOption = Annotated[int, typer.Option(help="Tokens of an answer.", min=1)]
WarmupOption = Annotated[int, typer.Option(help="Rounds before anything is measured.", min=0)]
SeedOption = Annotated[int, typer.Option(help="The same seed asks for the same.")]
ProfileOption = Annotated[bool, typer.Option("--profile", help="Time each kind of op of the model.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PHASES = {
    "interpreter_ms": "Python",
    "import_ms": "imports",
    "load_ms": "model ready",
    "first_token_ms": "first token",
    "total_ms": "all",
}


@takes(engine=engine_options)
def throughput(
    context: typer.Context,
    model: ModelOption = DEFAULT_MODEL,
    num_prompts: Annotated[int, typer.Option(help="Requests in all, at once.", min=1)] = 64,
    input_len: InputOption = 128,
    output_len: OutputOption = 64,
    num_warmups: WarmupOption = 1,
    seed: SeedOption = 0,
    profile: ProfileOption = False,
    as_json: JsonOption = False,
    save_result: SaveOption = None,
    log_level: LogLevelOption = None,
    *,
    engine: Options,
) -> int:
    """Give an engine many prompts of random tokens at once, and print how many tokens it makes in a second."""
    from headrace.bench.offline import Work, throughput

    with open_model(context, model, engine, log_level) as llm:
        result = throughput(llm, Work(num_prompts, input_len, output_len, seed), num_warmups, profile)
    lines = [engine_table(result), *profile_lines(result)]
    return finish({**result, "model": model}, "\n".join(lines), as_json, save_result)


@takes(engine=engine_options)
def latency(
    context: typer.Context,
    model: ModelOption = DEFAULT_MODEL,
    batch_size: Annotated[int, typer.Option(help="Requests at once.", min=1)] = 1,
    input_len: InputOption = 32,
    output_len: OutputOption = 64,
    num_rounds: Annotated[int, typer.Option(help="Rounds that are measured.", min=1)] = 10,
    num_warmups: WarmupOption = 2,
    seed: SeedOption = 0,
    profile: ProfileOption = False,
    as_json: JsonOption = False,
    save_result: SaveOption = None,
    log_level: LogLevelOption = None,
    *,
    engine: Options,
) -> int:
    """Give an engine one small batch after another, and print how long each takes."""
    from headrace.bench.offline import Work, latency

    with open_model(context, model, engine, log_level) as llm, Bar(num_rounds + num_warmups, "rounds") as bar:
        work = Work(batch_size, input_len, output_len, seed)
        result = latency(llm, work, num_rounds, num_warmups, bar.tell, profile)
    lines = [engine_table(result), *times(result, {"batch_ms": "whole batch"}), *profile_lines(result)]
    return finish({**result, "model": model}, "\n".join(lines), as_json, save_result)


@takes(engine=engine_options)
def startup(
    model: ModelOption = DEFAULT_MODEL,
    num_rounds: Annotated[int, typer.Option(help="Processes that are started.", min=1)] = 3,
    as_json: JsonOption = False,
    save_result: SaveOption = None,
    *,
    engine: Options,
) -> int:
    """Start an engine in a new process again and again, and print how long it takes until its first token."""
    from headrace.bench.startup import startup

    keywords = engine_keywords(model, engine)
    engine_config(**keywords)
    with Bar(num_rounds, "processes") as bar:
        result = startup(keywords, num_rounds, bar.tell)
    text = "\n".join([plural(num_rounds, "start"), head(), *times(result, PHASES)])
    return finish(result, text, as_json, save_result)


def engine_table(result: dict[str, Any]) -> str:
    threads, sequences = plural(result["num_threads"], "thread"), plural(result["max_num_seqs"], "sequence")
    ran = f"{result['backend']}, {result['dtype']}, cache {result['kv_cache_dtype']}, {threads}"
    return f"{ran}, up to {sequences}\n{table(result)}"


def profile_lines(result: dict[str, Any]) -> list[str]:
    if "profile" not in result:
        return []
    from headrace.cli.profile_table import profile_table

    return [profile_table(result["profile"])]
