"""Every error of every route becomes an ApiError, and is written in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.words.errors import ConfigError, EngineDeadError, HeadraceError, QueueFullError, RequestError
from headrace.words.log import get_logger

log = get_logger(__name__)

Dialect = Literal["openai", "anthropic"]
KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    431: "HeadersTooLargeError",
    499: "AbortedError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """What a client is told: a status, a sentence, the parameter at fault, a code for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        retry_after_s: int | None = None,
        closes: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)
        if closes:
            self.headers["connection"] = "close"


def bad_request(param: str | None, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, f"{param}: {message}" if param else message, param, code)


def overloaded(message: str, retry_after_s: int, code: str) -> ApiError:
    return ApiError(503, message, code=code, retry_after_s=retry_after_s)


def api_error(error: BaseException, retry_after_s: int = 1) -> ApiError:
    """What a client may know of an exception; one that nobody expected is named by its type alone."""
    match error:
        case ApiError():
            return error
        case RequestError() | ConfigError():
            return ApiError(400, str(error), error.parameter)
        case QueueFullError():
            return overloaded(str(error), retry_after_s, "queue_full")
        case EngineDeadError():
            return ApiError(error.http_status, str(error), code="engine_dead")
        case HeadraceError():
            return ApiError(error.http_status, str(error))
        case ValidationError():
            return _from_validation(error)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=error.headers)
        case RecursionError():
            return bad_request(None, "the body is nested too deeply")
        case NotImplementedError():
            return ApiError(501, " ".join(str(error).split()) or "not implemented")
        case _:
            return ApiError(500, f"internal error ({type(error).__name__}); the server's log says more")


def told(error: BaseException, what: str, retry_after_s: int = 1) -> ApiError:
    """As `api_error`; a fault of ours that nobody expected is logged, `what` being what failed."""
    known = api_error(error, retry_after_s)
    if known.status >= 500 and not isinstance(error, ApiError | HeadraceError | NotImplementedError):
        log.error("%s failed", what, exc_info=error)
    return known


def _from_validation(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = str(first["loc"][0]) if first["loc"] else None
    message = first["msg"][:1].lower() + first["msg"][1:]
    return bad_request(where, message)


def error_body(error: ApiError, dialect: Dialect = "openai", request_id: str | None = None) -> dict[str, Any]:
    kind = KINDS.get(error.status, "InternalServerError" if error.status >= 500 else "BadRequestError")
    if dialect == "anthropic":
        kind = ANTHROPIC_KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    inner = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    if dialect == "anthropic":
        return {"type": "error", "error": inner, "request_id": request_id}
    return {"error": inner}


def error_response(error: ApiError, dialect: Dialect = "openai", request_id: str | None = None) -> Response:
    body = msgspec.json.encode(error_body(error, dialect, request_id))
    return Response(body, error.status, error.headers, media_type="application/json")
