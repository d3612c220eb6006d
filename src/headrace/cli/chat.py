"""`headrace chat`: a conversation at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from headrace.cli import report
from headrace.cli.generate import check_seen, completed, print_stream, sampling_params
from headrace.cli.model import LogLevelOption, ModelOption, SystemOption, open_model, set_log_level
from headrace.cli.options import Options, engine_options, sampling_options, takes
from headrace.cli.remote import KeyOption, Server, UrlOption, fields_of
from headrace.cli.stream import stream
from headrace.engine.timeline import render
from headrace.llm import LLM
from headrace.words.config import DEFAULT_MODEL
from headrace.words.errors import RequestError
from headrace.words.outputs import GOOD_ENDS, RequestOutput
from headrace.words.params import SamplingParams

Messages = list[dict[str, str]]
MAX_TOKENS = 1_024
Ask = Callable[[Messages], Iterator[RequestOutput]]
Explained = Callable[[RequestOutput], RequestOutput]
HELP = "/exit ends the program, /reset forgets the conversation, Ctrl-C stops an answer"


@takes(engine=engine_options, sampling=sampling_options)
def chat(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model, as --model names it.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    system: SystemOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the life of each request on stderr.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    log_level: LogLevelOption = None,
    *,
    engine: Options,
    sampling: Options,
) -> int:
    """Chat with a model: it remembers the conversation. /exit ends, /reset forgets, Ctrl-C stops an answer.

    Where neither you nor the checkpoint says otherwise an answer has 1,024 tokens at most, and the temperature is 0.2.
    With --url a running server answers; then MODEL is its name of the model.
    """
    check_seen(sampling)
    if url is not None:
        set_log_level(log_level)
        asked = name or (None if model == DEFAULT_MODEL else model)
        server = Server(url, api_key, asked)
        fields = completed(fields_of(sampling, engine), server.defaults(), MAX_TOKENS)
        Conversation(lambda said: server.chat(said, fields), system, server.with_life if explain else None).run()
        return 0
    with open_model(context, name or model, engine, log_level) as llm:
        params = sampling_params(llm, sampling, MAX_TOKENS)
        llm.get_chat_template()
        Conversation(_asking(llm, params), system, (lambda output: output) if explain else None).run()
    return 0


def _asking(llm: LLM, params: SamplingParams) -> Ask:
    def ask(messages: Messages) -> Iterator[RequestOutput]:
        rendered = llm.get_chat_template().render(messages)
        prompt = {"prompt": rendered.text, "prompt_token_ids": rendered.token_ids}
        return stream(llm.llm_engine, prompt, params)

    return ask


class Conversation:
    """What was said, and the next turn. `explained` gives an output with its timeline, None where none is wanted."""

    def __init__(self, ask: Ask, system: str | None, explained: Explained | None) -> None:
        self._ask = ask
        self._explained = explained
        self._head: Messages = [] if system is None else [{"role": "system", "content": system}]
        self._said = list(self._head)

    def run(self) -> None:
        if sys.stdin.isatty():
            print(HELP, file=sys.stderr)
        while (line := read_line()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/reset":
                    self._said = list(self._head)
                case text if text.startswith("/"):
                    unknown = "" if text == "/help" else f"{text.split()[0]} is no command here; "
                    print(unknown + HELP, file=sys.stderr)
                case text:
                    self._answer(text)

    def _answer(self, text: str) -> None:
        """One turn. What cannot be answered is not remembered."""
        messages = [*self._said, {"role": "user", "content": text}]
        watch = report.Stopwatch()
        try:
            output = print_stream(self._ask(messages))
        except RequestError as error:
            print(f"headrace: {error}", file=sys.stderr)
            return
        choice = output.outputs[0]
        if choice.finish_reason in (*GOOD_ENDS, "abort"):
            self._said = [*messages, {"role": "assistant", "content": choice.text}]
        else:
            print(f"headrace: {report.bad_ends([output])[0]}; /reset forgets the conversation", file=sys.stderr)
        print(report.speed([output], watch.read()).line(), file=sys.stderr)
        if self._explained:
            print(render(self._explained(output)), file=sys.stderr)


def read_line() -> str | None:
    """The next line, None at the end of the input. Ctrl-C gives an empty one."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    try:
        import readline  # noqa: F401
    except ImportError:
        pass
    try:
        return input("> ")
    except KeyboardInterrupt:
        print(f"\n{HELP}", file=sys.stderr)
        return ""
    except EOFError:
        print()
        return None
