"""/openapi.json and /docs: one page that needs nothing from elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, Response

from headrace.server.protocol.fields import AT_MOST, Body

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
STYLE += "code,pre{font:14px/1.4 ui-monospace,monospace}pre{background:#f4f4f4;padding:1rem;overflow:auto}"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"


def finish_schema(app: FastAPI, bodies: Sequence[type[Body]], bounds: Mapping[str, int]) -> dict[str, Any]:
    """FastAPI's description of the routes with the bodies that they read themselves, and their errors. `bounds` are
    the model's, by the names that the fields use."""
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, described = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    schemas = {**_bounded(described.get("$defs", {}), bounds), "Error": ERROR}
    schema["components"] = {"schemas": schemas}
    for operations in schema["paths"].values():
        for operation in operations.values():
            _describe(operation)
    return schema


def _bounded(value: Any, bounds: Mapping[str, int]) -> Any:
    if isinstance(value, list):
        return [_bounded(item, bounds) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: _bounded(item, bounds) for name, item in value.items() if name != AT_MOST}
    return found | ({"maximum": bounds[value[AT_MOST]]} if AT_MOST in value else {})


def _describe(operation: dict[str, Any]) -> None:
    """What every route may answer. A stream has its own type; the others are JSON."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    whole: dict[str, Any] = {"application/json": {}, "text/event-stream": {}, "text/plain": {}}
    operation["responses"] = {
        "200": {"description": "done", "content": whole},
        "4XX": {"description": "the request is at fault", "content": error},
        "5XX": {"description": "the server is at fault", "content": error | {"application/json": {}}},
    }


def docs_page(schema: dict[str, Any]) -> Response:
    parts = [f"<h1>{html.escape(schema['info']['title'])} {html.escape(schema['info']['version'])}</h1>"]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(operation.get('summary', ''))}</p>")
            if "requestBody" in operation:
                ref = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                body = schema["components"]["schemas"][ref.rpartition("/")[2]]
                parts.append(f"<details><summary>Body</summary><pre>{_fields(body)}</pre></details>")
    page = f"<!doctype html><meta charset=utf-8><title>Headrace</title><style>{STYLE}</style>{''.join(parts)}"
    return HTMLResponse(page, headers={"content-security-policy": POLICY, "x-content-type-options": "nosniff"})


def _fields(body: dict[str, Any]) -> str:
    plain = {name: {k: v for k, v in field.items() if k != "title"} for name, field in body["properties"].items()}
    return html.escape(json.dumps({"required": body.get("required", []), "properties": plain}, indent=2))
