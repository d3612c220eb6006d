"""One error tree. The caller's errors name the parameter, the limit, the given value and the way out."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class HeadraceError(Exception):
    """Root of every error that Headrace raises on purpose."""

    http_status = 500


class RequestError(HeadraceError, ValueError):
    """The caller's mistake in one request; it never disturbs another request."""

    http_status = 400

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter
        self.message = message

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, str]]:
        return type(self), (self.parameter, self.message)


class PromptTooLongError(RequestError):
    """The prompt can never fit; `generate` turns it into an output with the reason `prompt_length_exceeded`."""


class QueueFullError(HeadraceError):
    """The queue's bound is reached; the request may be sent again later."""

    http_status = 503


class ConfigError(HeadraceError, ValueError):
    """An engine option that is unknown, malformed or impossible together with another."""

    http_status = 400

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"{parameter}: {message}")
        self.parameter = parameter
        self.message = message


class ModelError(HeadraceError):
    """A checkpoint that cannot be used: the file's name (never its folder) and the cause, in one line."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(f"{file}: {cause}")
        self.file = file
        self.cause = cause


class UnsupportedError(HeadraceError, NotImplementedError):
    """Something that others offer and Headrace does not do yet."""

    http_status = 501


class EngineError(HeadraceError, RuntimeError):
    """Our fault: it ends what it must, with its root cause in the reply."""


class EngineDeadError(EngineError):
    """The engine has stopped for good; every open and later request gets this."""

    http_status = 503


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the known name closest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def brief(value: object) -> str:
    """`value` as an error message shows it: on one line, and short however long it is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
