"""The routes, as a FastAPI application behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace.server import chat, completions, embeddings, messages, operations, page, tokens
from headrace.server.docs import docs_page, finish_schema
from headrace.server.errors import api_error, error_response
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
    _add_pages(app)

    async def tell(request: Request, error: Exception) -> Response:
        return error_response(api_error(error), dialect_of(request.url.path), request.scope.get("headrace.request_id"))

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
    async def endpoint(request: Request) -> Response:
        return await create(service, request)

    return endpoint


def _body_schema(body: type[Body]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _add_operations(app: FastAPI, service: Service) -> None:
    async def health() -> Response:
        return operations.health(service)

    async def ready() -> Response:
        return operations.ready(service)

    async def metrics() -> Response:
        return operations.metrics(service)

    async def version() -> Response:
        return operations.version()

    async def models() -> Response:
        return operations.models(service)

    async def model(name: str) -> Response:
        return operations.model(service, name)

    async def requests() -> Response:
        return operations.requests(service)

    async def request_life(name: str) -> Response:
        return operations.request(service, name)

    async def abort_request(name: str) -> Response:
        return operations.abort(service, name)

    async def steps(request: Request) -> Response:
        return operations.steps(service, request)

    for path, endpoint, text in (
        ("/health", health, "Is the process alive, and its engine?"),
        ("/ready", ready, "Will a request be taken now?"),
        ("/metrics", metrics, "Prometheus's text format."),
        ("/version", version, "The version."),
        ("/v1/models", models, "The names of the model."),
        ("/v1/models/{name:path}", model, "One of the names."),
        ("/v1/requests", requests, "Open requests and the last finished ones."),
        ("/v1/requests/{name:path}", request_life, "The whole life of a request."),
        ("/v1/steps", steps, "The flight recorder: the last steps."),
    ):
        app.add_api_route(path, endpoint, methods=["GET"], summary=text, response_class=Response)
    app.add_api_route(
        "/v1/requests/{name:path}", abort_request, methods=["DELETE"], summary="Abort.", response_class=Response
    )


def _add_pages(app: FastAPI) -> None:
    schema = finish_schema(app, [body for _, body, _ in POSTS.values()])

    async def openapi() -> Response:
        return operations.json_response(schema)

    async def docs() -> Response:
        return docs_page(schema)

    async def file(request: Request) -> Response:
        return page.serve(request.url.path)

    app.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False, response_class=Response)
    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False, response_class=Response)
    for path in page.FILES:
        app.add_api_route(path, file, methods=["GET"], include_in_schema=False, response_class=Response)
