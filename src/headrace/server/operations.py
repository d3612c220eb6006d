"""What operators ask: is it alive, is it ready, what is it doing, why did that request take so long."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headrace.engine.live import is_working
from headrace.server.books import PREFIXES
from headrace.server.errors import ApiError
from headrace.server.service import Service
from headrace.server.sse import encode


def json_response(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json", headers={"cache-control": "no-store"})


def health(service: Service, asked: Request) -> Response:
    """Alive: the process answers, and the engine's heart beats or has no reason to."""
    core = service.llm.engine.core
    age_s = time.monotonic() - core.last_step_s if is_working(core) else 0.0
    is_well = not service.llm.is_dead and age_s <= service.settings.wedge_timeout_s
    status = "ok" if is_well else "dead" if service.llm.is_dead else "stuck"
    return json_response({"status": status, "heartbeat_age_s": round(age_s, 3)}, 200 if is_well else 503)


def ready(service: Service, asked: Request) -> Response:
    why = service.not_ready()
    core = service.llm.engine.core
    shaped = {"ready": why is None, "reason": why, "num_queued": core.num_queued, "num_open": service.llm.num_open}
    return json_response(shaped, 200 if why is None else 503)


def metrics(service: Service, asked: Request) -> Response:
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def version(service: Service, asked: Request) -> Response:
    return json_response({"version": metadata.version("headrace")})


def models(service: Service, asked: Request) -> Response:
    return json_response({"object": "list", "data": [_model(service, n) for n in service.settings.model_names]})


def model(service: Service, asked: Request) -> Response:
    return json_response(_model(service, service.check_model(asked.path_params["name"] or "/")))


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "headrace",
        "root": service.settings.model_name,
        "parent": None,
        "max_model_len": service.llm.engine.resolved.scheduler.max_model_len,
        "default_sampling_params": dict(service.llm.engine.sampling_defaults),
    }


def requests(service: Service, asked: Request) -> Response:
    return json_response({"object": "list", "data": service.books.lines(service.llm.streams)})


def request(service: Service, asked: Request) -> Response:
    return json_response({"object": "list", "data": _known(service, asked.path_params["name"])})


def abort(service: Service, asked: Request) -> Response:
    """Ends every open request of that id. One that has ended stays as it was; an unknown one is 404."""
    name = asked.path_params["name"]
    count = sum(service.llm.abort(prefix + name, "cancelled by an operator") for prefix in ("", *PREFIXES))
    if not count:
        _known(service, name)
    return json_response({"id": name, "object": "request", "aborted": count})


def _known(service: Service, name: str) -> list[dict[str, Any]]:
    found = service.books.find(name, service.llm.streams)
    if not found:
        raise ApiError(404, f"no request is called {name[:200]!r}; the last finished ones are kept", code="not_found")
    return found


def steps(service: Service, asked: Request) -> Response:
    last = asked.query_params.get("last", "")[:9]
    records = service.flight.read()
    return json_response(
        {"object": "list", "data": records[-int(last) :] if last.isdecimal() and int(last) else records}
    )
