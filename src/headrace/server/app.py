"""The routes, as a FastAPI application behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.server import chat, completions, embeddings, messages, operations, page, tokens
from headrace.server.body import ClientGone
from headrace.server.docs import docs_page, finish_schema
from headrace.server.errors import ApiError, api_error, error_response, told
from headrace.server.gate import Gate, dialect_of
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.fields import Body
from headrace.server.protocol.messages import CountTokensRequest, MessagesRequest
from headrace.server.protocol.tokens import DetokenizeRequest, EmbeddingRequest, TokenizeRequest
from headrace.server.service import Service

Create = Callable[[Service, Request], Awaitable[Response]]
POSTS: dict[str, tuple[Create, type[Body], str]] = {
    "/v1/chat/completions": (chat.create, ChatRequest, "Answer a conversation."),
    "/v1/completions": (completions.create, CompletionRequest, "Continue prompts, or score them."),
    "/v1/embeddings": (embeddings.create, EmbeddingRequest, "Vectors of texts."),
    "/v1/messages": (messages.create, MessagesRequest, "Answer a conversation, in Anthropic's protocol."),
    "/v1/messages/count_tokens": (messages.count_tokens, CountTokensRequest, "Count the tokens of a conversation."),
    "/tokenize": (tokens.tokenize, TokenizeRequest, "Token ids of a text or a conversation."),
    "/detokenize": (tokens.detokenize, DetokenizeRequest, "The text of token ids."),
}


def make_app(service: Service) -> ASGIApp:
    app = FastAPI(
        title="Headrace",
        version=metadata.version("headrace"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url=None,
    )
    _add_work(app, service)
    _add_operations(app, service)
    _add_pages(app, service)

    async def tell(request: Request, error: Exception) -> Response:
        known = api_error(error)
        asked = f"{request.method} {request.url.path[:200]}"
        if known.status == 404:
            known.message = f"{asked} is no route of this server; GET /docs lists them"
        if known.status == 405:
            known.headers["allow"] = ", ".join(_methods(app, request.url.path))
            known.message = f"{asked} is not answered, only {known.headers['allow']}"
        return _answer(request, known)

    app.add_exception_handler(HTTPException, tell)
    return Gate(app, service)


def _add_work(app: FastAPI, service: Service) -> None:
    for path, (create, body, text) in POSTS.items():
        app.add_api_route(
            path,
            _bound(create, service),
            methods=["POST"],
            summary=text,
            operation_id=path.strip("/").replace("/", "_"),
            response_class=Response,
            openapi_extra=_body_schema(body),
        )


def _bound(create: Create, service: Service) -> Callable[[Request], Awaitable[Response]]:
    """A route, and every error of it as an answer; nobody reads the answer of a client that is gone."""

    async def endpoint(request: Request) -> Response:
        try:
            return await create(service, request)
        except ClientGone:
            return _answer(request, ApiError(499, "the client is gone", closes=True))
        except Exception as error:
            what = f"{request.method} {request.url.path}"
            return _answer(request, told(error, what, service.retry_after_s()))

    return endpoint


def _methods(app: FastAPI, path: str) -> list[str]:
    """Of every route at this path; one route alone would name only its own."""
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
    return sorted({method for route in routes for method in route.methods or ()})


def _answer(request: Request, error: ApiError) -> Response:
    return error_response(error, dialect_of(request.url.path), request.scope.get("headrace.request_id"))


def _body_schema(body: type[Body]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _add_operations(app: FastAPI, service: Service) -> None:
    for method, path, answer, text in (
        ("GET", "/health", operations.health, "Is the process alive, and its engine?"),
        ("GET", "/ready", operations.ready, "Will a request be taken now?"),
        ("GET", "/metrics", operations.metrics, "Prometheus's text format."),
        ("GET", "/version", operations.version, "The version."),
        ("GET", "/v1/models", operations.models, "The names of the model."),
        ("GET", "/v1/models/{name:path}", operations.model, "One of the names."),
        ("GET", "/v1/requests", operations.requests, "Open requests and the last finished ones."),
        ("GET", "/v1/requests/{name:path}", operations.request, "The whole life of a request."),
        ("DELETE", "/v1/requests/{name:path}", operations.abort, "Abort a request."),
        ("GET", "/v1/steps", operations.steps, "The flight recorder: the last steps."),
    ):
        app.add_api_route(
            path,
            _bound(_later(answer), service),
            methods=[method],
            summary=text,
            operation_id=f"{method.lower()}_{answer.__name__}",
            response_class=Response,
            openapi_extra=_path_schema(path),
        )


def _later(answer: Callable[[Service, Request], Response]) -> Create:
    async def create(service: Service, request: Request) -> Response:
        return answer(service, request)

    return create


def _path_schema(path: str) -> dict[str, Any] | None:
    if "{name" not in path:
        return None
    return {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}


def _add_pages(app: FastAPI, service: Service) -> None:
    @cache
    def schema() -> dict[str, Any]:
        return finish_schema(app, [body for _, body, _ in POSTS.values()], service.bounds())

    async def openapi() -> Response:
        return operations.json_response(await asyncio.to_thread(schema))

    async def docs() -> Response:
        return docs_page(await asyncio.to_thread(schema))

    async def file(request: Request) -> Response:
        return page.serve(request.url.path)

    app.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False, response_class=Response)
    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False, response_class=Response)
    for path in page.FILES:
        app.add_api_route(path, file, methods=["GET"], include_in_schema=False, response_class=Response)
