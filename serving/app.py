"""The FastAPI application: routes and nothing else.

Owns paths and the OpenAPI document; knows nothing of threads and processes. Interactive pages of
FastAPI are off: they load scripts from another host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware

import dvi
from serving.auth import AccessRules
from serving.completions import enter, generate
from serving.document import body_schema, make_document
from serving.errors import ApiError, install_handlers, out_of_storage
from serving.gate import Gate
from serving.parse import as_json, read_body, validate
from serving.registry_desk import RegistryDesk
from serving.schema import ChatBody, CompletionBody, PromoteBody
from serving.service import Door, Service


def _add_health_routes(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> Response:
        door = service.door()
        return JSONResponse({"status": door.value}, 200 if door is Door.READY else 503)

    @app.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": dvi.__version__})


def _add_model_routes(app: FastAPI, service: Service) -> None:
    def card() -> dict[str, Any]:
        model, _ = enter(service)
        return {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "dvi",
            "max_model_len": model.max_context_len,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card()]})

    @app.get("/v1/models/{model_id:path}")
    async def one_model(model_id: str) -> Response:
        found = card()
        if model_id != found["id"]:
            raise ApiError(
                404,
                f"The model {model_id!r} does not exist.",
                param="model",
                code="model_not_found",
            )
        return JSONResponse(found)

    @app.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
    async def completions(request: Request) -> Response:
        return await generate(service, request, CompletionBody)

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await generate(service, request, ChatBody)


def _add_admin_routes(app: FastAPI, service: Service, desk: Callable[[], RegistryDesk]) -> None:
    async def act(work: Callable[[RegistryDesk], Any]) -> Any:
        enter(service)
        try:
            return await run_in_threadpool(work, desk())
        except ValueError as error:
            raise ApiError(400, str(error), param="version", code="adapter_refused") from error
        except OSError as error:
            raise out_of_storage(error) from error

    @app.get("/admin/adapters")
    async def adapters() -> Response:
        return JSONResponse(await act(lambda desk: desk.overview()))

    @app.post("/admin/adapters/promote", openapi_extra=body_schema(PromoteBody))
    async def promote(request: Request) -> Response:
        enter(service)
        raw = await read_body(request, service.config.max_body_bytes)
        version = validate(PromoteBody, as_json(raw)).version
        return JSONResponse({"current": await act(lambda desk: desk.promote(version))})

    @app.post("/admin/adapters/rollback")
    async def rollback() -> Response:
        return JSONResponse({"current": await act(lambda desk: desk.rollback())})

    @app.post("/admin/trainer/pause")
    async def pause() -> Response:
        await act(lambda desk: desk.pause_training())
        return JSONResponse({"paused": True})

    @app.post("/admin/trainer/resume")
    async def resume() -> Response:
        await act(lambda desk: desk.resume_training())
        return JSONResponse({"paused": False})


def _add_document(app: FastAPI, rules: AccessRules) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            with_keys = bool(rules.api_keys or rules.admin_keys)
            app.openapi_schema = make_document(app, with_keys=with_keys)
        return app.openapi_schema

    # FastAPI's own way to replace the document (an assignment to the method).
    app.openapi = document  # type: ignore[method-assign]


def make_app(
    service: Service,
    rules: AccessRules,
    metrics: Callable[[], bytes],
    desk: Callable[[], RegistryDesk],
) -> FastAPI:
    """The application. ``metrics`` may block and works from the start, ``desk`` once ready."""
    app = FastAPI(title="dvi", version=dvi.__version__, docs_url=None, redoc_url=None)
    install_handlers(app)
    _add_health_routes(app, service)
    _add_model_routes(app, service)
    _add_admin_routes(app, service, desk)
    _add_document(app, rules)

    @app.get("/metrics")
    async def metrics_text() -> Response:
        text = await run_in_threadpool(metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    app.add_middleware(Gate, rules=rules)
    if rules.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(rules.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app
