"""Structured logs: one line for each answer, as key=value or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from headrace.server.settings import LogFormat
from headrace.words.log import get_logger

if TYPE_CHECKING:
    from starlette.types import Scope

log = get_logger("headrace.access")


def log_response(scope: Scope, status: int, took_s: float, request_id: str) -> None:
    if log.isEnabledFor(logging.INFO):
        client = scope.get("client")
        fields = {
            "request_id": request_id,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "took_s": round(took_s, 4),
            "client": client[0] if client else None,
        }
        log.info(" ".join(f"{name}={_plain(value)}" for name, value in fields.items()), extra={"fields": fields})


def _plain(value: Any) -> str:
    """On one line whatever a client sent."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of an access line."""

    def format(self, record: logging.LogRecord) -> str:
        shaped: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        shaped |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            shaped["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shaped, ensure_ascii=False, default=str)


def set_up(level: str, form: LogFormat) -> None:
    """The logs of ours and of uvicorn on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    for name in ("headrace", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("headrace").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
