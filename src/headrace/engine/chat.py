"""Chat templates: messages to text in a sandbox, and that text to token ids.

What a user writes stays text. A template writes special tokens such as `<|im_end|>` itself, and the rendered text must
be read with them parsed; a user who writes the same characters must not be able to close a turn with them. So before
rendering, every special token's text inside a message is broken after its first character by a mark: one private
character that occurs nowhere in the conversation. In the rendered text the whole ones are the template's, the broken
ones the users'; the text between the template's is encoded with special tokens taken as text, the mark removed.

Without such text in the messages nothing is marked and the rendered text is encoded in one piece, so that ordinary
chats get the very ids that everybody else gets. A template that reads its messages (splits, compares, counts) may
render marked ones differently: then the text without marks differs from the unmarked rendering, and the special
tokens in the messages are broken by a zero-width space for good. That changes what is shown of them, never the roles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.engine import checks
from headrace.engine.inputs import Prompt, clean_text
from headrace.engine.template import compile_template, one_line, set_budget
from headrace.engine.tokenizer import Tokenizer
from headrace.words.errors import PromptTooLongError, RequestError, nearest
from headrace.words.params import Limits

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
REASONING = ("reasoning_content", "thinking", "reasoning")
MAX_DEPTH = 100
"""Of lists and dicts within a message; what holds itself is deeper."""
ZERO_WIDTH_SPACE = "\u200b"
_PRIVATE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))


class RenderedChat(NamedTuple):
    text: str
    token_ids: list[int]

    @property
    def prompt(self) -> Prompt:
        return {"prompt": self.text, "prompt_token_ids": self.token_ids}


class ChatTemplate:
    """A model's template with its tokenizer. Rendering is a function of the messages (and of the date, if it asks)."""

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        max_chars: int = Limits().prompt_chars,
    ) -> None:
        """`special_tokens` are the names that templates know: bos_token, eos_token, …"""
        self._max_chars = max_chars
        self._template = compile_template(source)
        self._tokenizer = tokenizer
        self._variables = dict(special_tokens or {})
        texts = {tokenizer.token_bytes(i).decode("utf-8", "replace"): i for i in sorted(tokenizer.special_ids)}
        self._special_ids = {text: i for text, i in texts.items() if len(text) > 1}
        ordered = sorted(self._special_ids, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    def render(
        self,
        /,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> RenderedChat:
        """Text and ids of a conversation; raises RequestError for bad messages and for what the template refuses.

        With `continue_final_message` the text ends where the last message's content ends.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message", "cannot be combined with add_generation_prompt; set that to False"
            )
        checks.flag("add_generation_prompt", add_generation_prompt)
        checks.flag("continue_final_message", continue_final_message)
        plain = [_check_message(message) for message in messages]
        if not plain:
            raise RequestError("messages", "is empty; it must hold at least one message")
        if continue_final_message:
            _check_final(plain[-1])

        def run(asked: tuple[list[Any], dict[str, Any]]) -> str:
            return self._run(*asked, continue_final_message, add_generation_prompt)

        asked = (plain, _plain(variables))
        text = run(asked)
        if len(text) > self._max_chars:
            raise PromptTooLongError("messages", f"at most {self._max_chars} characters are read, got {len(text)}")
        if not any(map(self._specials.search, _texts(asked))):
            return RenderedChat(text, self._tokenizer.encode(clean_text(text), add_special_tokens=False))
        mark = _unused_character(text, asked, self._specials.pattern)
        rendered = run(self._break_specials(asked, mark))
        if rendered.replace(mark, "") != text:
            mark = ""
            text = rendered = run(self._break_specials(asked, ZERO_WIDTH_SPACE))
        return RenderedChat(text, self._encode_pieces(rendered, mark))

    def _run(self, conversation: list[Any], extra: dict[str, Any], final: bool, add_generation_prompt: bool) -> str:
        if not final:
            return self._fill(conversation, add_generation_prompt, extra)
        content = conversation[-1]["content"]
        end = _unused_character(conversation, extra)
        core = content.rstrip()
        tail = content[len(core) :]
        text = self._fill([*conversation[:-1], {**conversation[-1], "content": core + end + tail}], False, extra)
        if text.count(end) != 1:
            raise RequestError("continue_final_message", "the chat template does not show the last content once")
        before, _, after = text.partition(end)
        return before + (tail if after.startswith(tail) else "")

    def _fill(self, conversation: list[Any], add_generation_prompt: bool, extra: Mapping[str, Any]) -> str:
        known = {"messages": conversation, "add_generation_prompt": add_generation_prompt}
        set_budget(len(conversation), sum(len(m.get("content") or "") for m in conversation))
        try:
            return self._template.render({"tools": None, "documents": None, **self._variables, **extra, **known})
        except RequestError:
            raise
        except Exception as error:
            if any("content" not in message for message in conversation):
                # Most templates take a message that only calls tools without content, some only with one of None.
                whole = [{"content": None, **message} for message in conversation]
                return self._fill(whole, add_generation_prompt, extra)
            raise RequestError("messages", f"the chat template failed: {one_line(error)}") from error

    def _break_specials(self, value: Any, mark: str) -> Any:
        """A copy in which no text holds a special token whole."""
        if isinstance(value, str):
            return mark.join(self._cut(value))
        if isinstance(value, list | tuple):
            return type(value)(self._break_specials(item, mark) for item in value)
        if isinstance(value, dict):
            return {self._break_specials(k, mark): self._break_specials(v, mark) for k, v in value.items()}
        return value

    def _cut(self, text: str) -> Iterator[str]:
        """The text in pieces that end behind the first character of each special token, also where two overlap."""
        start = 0
        while match := self._specials.search(text, start):
            yield text[start : match.start() + 1]
            start = match.start() + 1
        yield text[start:]

    def _encode_pieces(self, text: str, mark: str) -> list[int]:
        """Ids of a text whose whole special tokens are the template's, and all others text."""
        ids: list[int] = []
        position = 0
        for match in self._specials.finditer(text):
            ids += self._encode_text(text[position : match.start()], mark)
            ids.append(self._special_ids[match.group()])
            position = match.end()
        return ids + self._encode_text(text[position:], mark)

    def _encode_text(self, text: str, mark: str) -> list[int]:
        text = clean_text(text.replace(mark, "") if mark else text)
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False) if text else []


def _check_message(message: Any) -> dict[str, Any]:
    """One message as a plain dict without what is None, its content as text (absent where an assistant only calls)."""
    if not isinstance(message, Mapping):
        raise RequestError("messages", f"each must be a dict with role and content, got {checks.shown(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        hint = nearest(role, ROLES) if isinstance(role, str) else ""
        raise RequestError("messages", f"role must be one of {', '.join(ROLES)}, got {checks.shown(role)}{hint}")
    plain: dict[str, Any] = _plain(message)
    content, calls = message.get("content"), plain.get("tool_calls")
    known = {name: value for name, value in _with_reasoning(plain).items() if value is not None}
    if isinstance(calls, list):
        known["tool_calls"] = [_with_arguments(call) for call in calls]
    if content is None and calls:
        return known
    return {**known, "content": _content_text(content)}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """What an answer was reasoned, under each of the names that templates know."""
    told = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if told is None else {"thinking": told, **message, "reasoning_content": told}


def _with_arguments(call: Any) -> Any:
    """Clients send the arguments of a call as JSON text, templates expect the object that it says."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _content_text(content: Any) -> str:
    """Text, or the texts of a list of parts, one a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError("messages", f"content must be a text or a list of parts, got {checks.shown(content)}")
    lines = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise RequestError("messages", f"only parts of type text are understood, got {checks.shown(part)}")
        lines.append(part["text"])
    return "\n".join(lines)


def _plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    if depth < 0:
        raise RequestError("messages", f"at most {MAX_DEPTH} levels of lists and dicts are read; nest them less")
    if isinstance(value, Mapping):
        return {str(k): _plain(v, depth - 1) for k, v in value.items()}
    return [_plain(item, depth - 1) for item in value] if isinstance(value, list | tuple) else value


def _check_final(message: Mapping[str, Any]) -> None:
    content = message["content"]
    if not isinstance(content, str) or not content.strip():
        raise RequestError("continue_final_message", "the last message has no text to continue; give it some")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, names too; what is neither a text nor made of any is told as it would be shown. One by
    one, for a call over all of them would hold up every thread."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif not isinstance(value, int | float | None):
        yield str(value)


def _unused_character(*values: Any) -> str:
    """A private character that occurs in none of the values."""
    text = "".join(_texts(values))
    # Looking for a few is cheap; all characters are only listed for a text that has those.
    if (mark := next((chr(code) for code in _PRIVATE[:16] if chr(code) not in text), None)) is not None:
        return mark
    used = set(text)
    return next(chr(code) for code in _PRIVATE if chr(code) not in used)
