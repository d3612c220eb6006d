"""`headrace chat`: a conversation at the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli import report
from headrace.cli.generate import print_stream, sampling_params
from headrace.cli.model import LogLevelOption, ModelOption, SystemOption, open_model
from headrace.cli.options import Options, engine_options, sampling_options, takes
from headrace.engine.timeline import render
from headrace.llm import LLM
from headrace.words.config import DEFAULT_MODEL
from headrace.words.errors import RequestError
from headrace.words.params import SamplingParams

HELP = "/exit ends the program, /reset forgets the conversation, Ctrl-C stops an answer"


@takes(engine=engine_options, sampling=sampling_options)
def chat(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The model, as --model names it.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    system: SystemOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the life of each request on stderr.")] = False,
    log_level: LogLevelOption = None,
    *,
    engine: Options,
    sampling: Options,
) -> int:
    """Chat with a model: it remembers the conversation. /exit ends, /reset forgets, Ctrl-C stops an answer."""
    with open_model(context, name or model, engine, log_level) as llm:
        params = sampling_params(llm, sampling, max_tokens=None)
        llm.get_chat_template()
        Conversation(llm, params, system, explain).run()
    return 0


class Conversation:
    """What was said, and the next turn."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, explain: bool) -> None:
        self._llm = llm
        self._params = params
        self._explain = explain
        self._head = [] if system is None else [{"role": "system", "content": system}]
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
                    print(HELP, file=sys.stderr)
                case text:
                    self._answer(text)

    def _answer(self, text: str) -> None:
        """One turn. What cannot be answered is not remembered."""
        messages = [*self._said, {"role": "user", "content": text}]
        watch = report.Stopwatch()
        try:
            rendered = self._llm.get_chat_template().render(messages)
            prompt = {"prompt": rendered.text, "prompt_token_ids": rendered.token_ids}
            output = print_stream(self._llm, prompt, self._params)
        except RequestError as error:
            print(f"headrace: {error}", file=sys.stderr)
            return
        choice = output.outputs[0]
        if choice.finish_reason in (*report.GOOD_ENDS, "abort"):
            self._said = [*messages, {"role": "assistant", "content": choice.text}]
        else:
            print(f"headrace: {report.bad_ends([output])[0]}; /reset forgets the conversation", file=sys.stderr)
        print(report.speed([output], watch.read()).line(), file=sys.stderr)
        if self._explain:
            print(render(output), file=sys.stderr)


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
