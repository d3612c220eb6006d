"""The offline face: a model that continues prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol

from headrace.engine import build
from headrace.engine.build import Engine
from headrace.engine.chat import ChatTemplate
from headrace.engine.inputs import Checked, Params, Prompt, pair_params, split_prompts
from headrace.engine.interrupts import DeferredInterrupt
from headrace.engine.llm_engine import LLMEngine
from headrace.engine.metrics import Metrics
from headrace.engine.output import Output, refused
from headrace.engine.progress import terminal_progress
from headrace.engine.tokenizer import Tokenizer
from headrace.words.config import DEFAULT_MODEL, engine_config
from headrace.words.errors import PromptTooLongError, RequestError, brief
from headrace.words.outputs import EmbeddingOutput, RequestOutput
from headrace.words.params import PoolingParams, SamplingParams

Message = Mapping[str, Any]


class Bar(Protocol):
    """What is asked of a progress bar; tqdm's has it."""

    def update(self, n: int) -> object: ...

    def close(self) -> object: ...


MakeBar = Callable[..., Bar]
Item = Prompt | PromptTooLongError
"""A prompt, or why it cannot be read."""
TAKEN = {"self", "messages", "add_generation_prompt", "continue_final_message"}
"""Variables of a chat template that are not the caller's."""


class LLM:
    """A model in this process. `model` is a folder, a Hugging Face name, a GGUF file or an alias; the other keywords
    are those of EngineConfig, with vLLM's names.

    One call at a time: a second thread that calls meanwhile is refused (AsyncLLM takes many), and so is a process
    forked from the one that made it. Requests of one call run together, and come back in the order of the prompts.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        asked = engine_config(model=model, **options)
        with terminal_progress() as progress:
            self.llm_engine = LLMEngine(build.build_engine(asked, progress))

    @classmethod
    def from_engine(cls, engine: Engine) -> LLM:
        llm = cls.__new__(cls)
        llm.llm_engine = LLMEngine(engine)
        return llm

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt: text, token ids, or a dict with `prompt` or `prompt_token_ids`.

        An empty prompt, a foreign id or a bad parameter raises RequestError before anything runs. A prompt that is too
        long becomes an output with the reason `prompt_length_exceeded`, and the others run on. Ctrl-C aborts the
        requests of this call.
        """
        return self._generate(split_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several. `chat_template` replaces the model's own."""
        conversations = _conversations(messages)
        template = self.get_chat_template(chat_template)
        variables = _variables(chat_template_kwargs)
        prompts: list[Prompt | PromptTooLongError] = []
        for conversation in conversations:
            try:
                chat = template.render(conversation, add_generation_prompt, continue_final_message, **variables)
                prompts.append(chat.prompt)
            except PromptTooLongError as error:
                prompts.append(error)
        return self._generate(prompts, sampling_params, use_tqdm, None)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool | MakeBar = True,
    ) -> list[EmbeddingOutput]:
        """One vector for each prompt, made of the model's last hidden states."""
        items = split_prompts(prompts)
        params = pair_params(pooling_params, len(items), PoolingParams)
        _check_kind(params, PoolingParams, "pooling_params")
        return self._run(items, params, use_tqdm, None)

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when no parameters are given: the checkpoint's generation_config over our defaults."""
        return self.llm_engine.engine.default_sampling_params()

    def get_tokenizer(self) -> Tokenizer:
        return self.llm_engine.get_tokenizer()

    def get_chat_template(self, source: str | None = None) -> ChatTemplate:
        return self.llm_engine.engine.chat_template(source)

    def get_metrics(self) -> Metrics:
        return self.llm_engine.get_metrics()

    def close(self) -> None:
        """Gives back memory and threads; twice is once."""
        self.llm_engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generate(
        self, items: Sequence[Item], sampling_params: Any, use_tqdm: bool | MakeBar, priority: Sequence[int] | None
    ) -> list[RequestOutput]:
        params = pair_params(sampling_params, len(items), self.get_default_sampling_params)
        _check_kind(params, SamplingParams, "sampling_params")
        return self._run(items, params, use_tqdm, priority)

    def _run(
        self, items: Sequence[Item], params: list[Params], use_tqdm: bool | MakeBar, priority: Sequence[int] | None
    ) -> list[Any]:
        orders = _orders(priority, len(items))
        with self.llm_engine.turn():
            checked = [self._check(*each) for each in zip(items, params, orders, strict=True)]
            with DeferredInterrupt() as interrupt, progress_bar(use_tqdm, len(items), self.llm_engine) as bar:
                return self._run_all(checked, interrupt, bar)

    def _check(self, prompt: Item, params: Params, priority: int | None) -> Checked | Output:
        if isinstance(prompt, PromptTooLongError):
            return refused(None, params, prompt)
        try:
            return self.llm_engine.engine.inputs.check(prompt, params, priority)
        except PromptTooLongError as error:
            return refused(prompt if isinstance(prompt, str) else None, params, error)

    def _run_all(self, checked: list[Checked | Output], interrupt: DeferredInterrupt, bar: Bar) -> list[Output]:
        """Everything is queued first, then stepped to its end; what is left when something is raised is aborted."""
        engine = self.llm_engine
        done: dict[int, Output] = {}
        open_ids: dict[int, int] = {}
        try:
            for place, item in enumerate(checked):
                if isinstance(item, Checked):
                    open_ids[engine.submit(item)] = place
                else:
                    done[place] = item
            bar.update(len(done))
            while open_ids:
                engine.advance()
                finished = [state for state in engine.take_news(open_ids) if state.is_finished]
                for state in finished:
                    done[open_ids.pop(state.request.request_id)] = state.output()
                bar.update(len(finished))
                interrupt.check()
        except BaseException:
            engine.discard(open_ids)
            raise
        return [done[place] for place in range(len(checked))]


def _check_kind(params: Sequence[Params], kind: type, name: str) -> None:
    for each in params:
        if not isinstance(each, kind):
            raise RequestError(name, f"must be {kind.__name__}, got {type(each).__name__}")


def _orders(priority: Any, num_prompts: int) -> Sequence[int | None]:
    if priority is None:
        return [None] * num_prompts
    if not isinstance(priority, list | tuple) or len(priority) != num_prompts:
        given = brief(priority)
        raise RequestError("priority", f"must be a list, one for each of the {num_prompts} prompts, got {given}")
    return priority


def _conversations(messages: Any) -> list[Sequence[Message]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages", "must be a list of messages, or a list of such lists, and not empty")
    conversations = [messages] if isinstance(messages[0], Mapping) else list(messages)
    for conversation in conversations:
        if not isinstance(conversation, list | tuple):
            raise RequestError("messages", f"must hold messages, or lists of messages, got {brief(conversation)}")
    return conversations


def _variables(given: Any) -> Mapping[str, Any]:
    """What the caller hands to the chat template beside the messages."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise RequestError("chat_template_kwargs", f"must be a dict with names as keys, got {brief(given)}")
    if taken := sorted(TAKEN & given.keys()):
        raise RequestError("chat_template_kwargs", f"must not hold {taken[0]!r}; where chat has that argument, use it")
    return given


class NoBar:
    def update(self, n: int) -> None: ...

    def close(self) -> None: ...


@contextmanager
def progress_bar(use_tqdm: bool | MakeBar, total: int, engine: LLMEngine) -> Iterator[Bar]:
    """A bar on the terminal, the caller's own, or none."""
    bar: Bar
    if callable(use_tqdm):
        bar = use_tqdm(total=total, desc="Processed prompts")
    elif use_tqdm and total:
        bar = TerminalBar(total, engine)
    else:
        bar = NoBar()
    try:
        yield bar
    finally:
        bar.close()


class TerminalBar:
    """Finished requests and tokens per second, on stderr if that is a terminal, drawn ten times a second at most."""

    def __init__(self, total: int, engine: LLMEngine) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._engine = engine
        self._first = engine.get_metrics()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        speed = TextColumn("{task.fields[speed]}")
        self._progress = Progress(*columns, speed, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("generate", total=total, speed="")
        self._drawn_s = self._started_s = self._progress.get_time()
        self._progress.start()

    def update(self, n: int) -> None:
        now_s = self._progress.get_time()
        self._progress.advance(self._task, n)
        if now_s - self._drawn_s < 0.1 or self._progress.disable:
            return
        num_tokens = self._engine.get_metrics().num_generated_tokens - self._first.num_generated_tokens
        self._progress.update(self._task, speed=f"{num_tokens / (now_s - self._started_s):.0f} tok/s")
        self._drawn_s = now_s

    def close(self) -> None:
        self._progress.stop()
