"""`headrace generate`: answers to prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from headrace.cli import report
from headrace.cli.model import (
    LogLevelOption,
    ModelOption,
    SystemOption,
    conversation,
    open_model,
    read_prompt,
    set_log_level,
)
from headrace.cli.options import Options, engine_options, sampling_options, takes
from headrace.cli.remote import KeyOption, Server, UrlOption, all_of, fields_of
from headrace.cli.stream import stream
from headrace.engine.inputs import Prompt
from headrace.engine.timeline import render
from headrace.llm import LLM
from headrace.words.config import DEFAULT_MODEL
from headrace.words.errors import ConfigError
from headrace.words.outputs import GOOD_ENDS, RequestOutput
from headrace.words.params import SamplingParams

MAX_TOKENS = 256
TEMPERATURE = 0.2
"""On the command line, when neither the user nor the checkpoint says otherwise. At 1 small models ramble."""


@takes(engine=engine_options, sampling=sampling_options)
def generate(
    context: typer.Context,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help="What to answer; - reads standard input.")],
    model: ModelOption = DEFAULT_MODEL,
    system: SystemOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print the life of each request on stderr.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    log_level: LogLevelOption = None,
    *,
    engine: Options,
    sampling: Options,
) -> int:
    """Answer prompts and print text and speed.

    A model with a chat template gets each prompt as a user's message. A single answer is printed while it is made.
    Where neither you nor the checkpoint says otherwise it has 256 tokens at most, and the temperature is 0.2. With
    --url a running server answers; then --model is its name of the model.
    """
    if not as_json:
        check_seen(sampling)
    if url is not None:
        set_log_level(log_level)
        server = Server(url, api_key, None if model == DEFAULT_MODEL else model)
        fields = completed(fields_of(sampling, engine), server.defaults())
        return ask_server(server, [read_prompt(text) for text in prompts], fields, system, raw, as_json, explain)
    with open_model(context, model, engine, log_level) as llm:
        params = sampling_params(llm, sampling)
        texts = [read_prompt(text) for text in prompts]
        items = [prompt_of(llm, text, system, raw) for text in texts]
        watch = report.Stopwatch()
        if len(items) == 1 and params.n == 1 and not as_json:
            outputs = [print_stream(stream(llm.llm_engine, items[0], params))]
        else:
            outputs = llm.generate(items, params)
        seconds = watch.read()
    tell_answers(model, texts, outputs, seconds, as_json)
    return tell_the_rest(outputs, seconds, explain)


def check_seen(sampling: Options) -> None:
    """What text has no place for is refused, not dropped."""
    if "logprobs" in sampling:
        raise ConfigError("logprobs", "are not shown without --json of `headrace generate`; leave it out")


def ask_server(
    server: Server,
    texts: list[str],
    fields: Options,
    system: str | None,
    raw: bool,
    as_json: bool,
    explain: bool,
) -> int:
    """As `generate`, of a server."""
    watch = report.Stopwatch()
    if raw:
        streams = [server.complete(text if system is None else f"{system}\n\n{text}", fields) for text in texts]
    else:
        streams = [server.chat(conversation(system, text), fields) for text in texts]
    if len(texts) == 1 and fields.get("n", 1) == 1 and not as_json:
        outputs = [print_stream(streams[0])]
    else:
        outputs = all_of(streams)
    seconds = watch.read()
    if explain:
        outputs = [server.with_life(output) for output in outputs]
    tell_answers(server.model or server.url, texts, outputs, seconds, as_json)
    return tell_the_rest(outputs, seconds, explain)


def tell_answers(model: str, texts: list[str], outputs: list[RequestOutput], seconds: float, as_json: bool) -> None:
    """What was not printed while it came."""
    if as_json:
        print(json.dumps(report.as_json(model, outputs, seconds), ensure_ascii=False))
    elif len(texts) > 1 or len(outputs[0].outputs) > 1:
        print_answers(texts, outputs)


def completed(given: Mapping[str, Any], defaults: Mapping[str, Any], max_tokens: int = MAX_TOKENS) -> Options:
    """What was asked, with the command line's own values where `defaults`, the checkpoint's, say nothing."""
    ours = {"max_tokens": max_tokens, "temperature": TEMPERATURE}
    return {name: value for name, value in ours.items() if name not in defaults} | dict(given)


def sampling_params(llm: LLM, given: Options, max_tokens: int = MAX_TOKENS) -> SamplingParams:
    """The checkpoint's defaults over those of the command line, with what was asked on top."""
    defaults = llm.llm_engine.engine.sampling_defaults
    return SamplingParams(**{**defaults, **completed(given, defaults, max_tokens)})


def prompt_of(llm: LLM, text: str, system: str | None, raw: bool) -> Prompt:
    if raw or llm.llm_engine.engine.template is None:
        return text if system is None else f"{system}\n\n{text}"
    return llm.get_chat_template().render(conversation(system, text)).prompt


def print_stream(outputs: Iterator[RequestOutput]) -> RequestOutput:
    """Prints an answer as it comes; gives the final output."""
    shown, output = 0, None
    for output in outputs:
        text = output.outputs[0].text if output.outputs else ""
        sys.stdout.write(text[shown:])
        sys.stdout.flush()
        shown = len(text)
    assert output is not None
    if shown or any(choice.finish_reason in GOOD_ENDS for choice in output.outputs):
        sys.stdout.write("\n")
    return output


def print_answers(texts: list[str], outputs: list[RequestOutput]) -> None:
    for text, output in zip(texts, outputs, strict=True):
        for choice in output.outputs:
            number = f" [{choice.index}]" if len(output.outputs) > 1 else ""
            print(f"> {text}{number}\n{choice.text.strip()}\n")


def tell_the_rest(outputs: list[RequestOutput], seconds: float, explain: bool) -> int:
    """Speed, timelines and bad ends on stderr; gives the exit code."""
    print(report.speed(outputs, seconds).line(), file=sys.stderr)
    if explain:
        print("\n".join(render(output) for output in outputs), file=sys.stderr)
    bad = report.bad_ends(outputs)
    for line in bad:
        print(f"headrace: {line}", file=sys.stderr)
    was_stopped = any(choice.finish_reason == "abort" for output in outputs for choice in output.outputs)
    return 130 if was_stopped else 1 if bad else 0
