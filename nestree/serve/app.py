"""The FastAPI application: routes, and the way of a request from its bytes to documents."""

import asyncio
import codecs
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from nestree import __version__
from nestree.display import color_index, render
from nestree.errors import InputError, plural
from nestree.pipeline import Pipeline, PredictOptions, count_words
from nestree.serve import annotation_tools
from nestree.serve.metrics import Metrics
from nestree.serve.options import ApiError, Limits, ServeOptions
from nestree.serve.queue import Item, PredictionQueue
from nestree.serve.security import Guard
from nestree.text import MAX_CHUNK
from nestree.types import Document

MAX_CONSTRAINTS = 2_000  # of a request: checking them takes quadratic time
INLINE_CHARACTERS = 5_000  # longer texts are split into words by another thread
PART_CHARACTERS = 100_000  # the words of longer texts are counted in parts of this size first
# A body that is too large is read up to this many times the limit, so that its client gets the error.
DISCARDED_BODIES = 10
PAGE = Path(__file__).parent / "page"
SHARED_STYLES = (
    "templates/base.css",
    "templates/colors.css.jinja",
    "show/templates/boxes.css",
    "show/templates/trees.css",
)
Body = TypeVar("Body", bound=BaseModel)


class EntitiesRequest(BaseModel):
    """Texts, and optionally what is known about each of them. Offsets count Unicode code points; ends are exclusive."""

    model_config = ConfigDict(extra="forbid", strict=True)
    texts: list[str]
    known: list[list[list[Any]]] | None = Field(
        None,
        description="For each text, its known entities: [start, end], [start, end, label] or "
        "[start, end, label, head]; a head is a position in the text or [start, end].",
    )
    forbidden: list[list[list[Any]]] | None = Field(
        None,
        description="For each text, spans that are no entities: [start, end]; or not with a label: "
        "[start, end, label].",
    )
    threshold: Any = Field(
        None, description="The lowest probability: a number, or one for each label; null: the model's own."
    )
    labels: list[str] | None = Field(None, description="Only entities with these labels; null: all.")
    trees: bool | None = Field(False, description="Add the trees of the sentences to each document.")


class Service:
    """The state of the application; its methods are shared by the routes."""

    def __init__(self, load: Callable[[], Pipeline], options: ServeOptions) -> None:
        self.options, self.metrics = options, Metrics()
        self.queue = PredictionQueue(load, options, self.metrics)
        self.bodies: set[asyncio.Timeout] = set()  # of requests whose body is being read

    async def read_json(self, request: Request, model: type[Body]) -> Body:
        """The body of a request; raises an ApiError if it is too large, too slow or invalid."""
        given = request.headers.get("content-type", "").strip().lower()
        charset = re.search(r'charset\s*=\s*"?([\w-]*)', given)
        in_utf8 = charset is None or charset[1] in ("utf-8", "utf8", "us-ascii")
        kind = given.partition(";")[0].strip()
        is_compressed = request.headers.get("content-encoding", "identity") != "identity"
        if kind != "application/json" or not in_utf8 or is_compressed:
            form = f"{'compressed ' * is_compressed}{given[:100] or 'of no type'}"
            message = f"The body is {form}; send plain application/json in UTF-8."
            raise ApiError(415, "wrong_content_type", message)
        timeout = asyncio.timeout(self.options.timeout)
        self.bodies.add(timeout)
        try:
            async with timeout:
                body = await self.read_body(request)
        except TimeoutError:
            if self.queue.draining:
                self.queue.check_open()  # raises
            message = f"The body did not arrive within {self.options.timeout:g} s; send it faster or in parts."
            raise ApiError(408, "slow_body", message, {"Connection": "close"}) from None
        finally:
            self.bodies.discard(timeout)
        try:
            return model.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
        except ValidationError as errors:
            error = errors.errors(include_url=False, include_context=False)[0]
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
            given = json.dumps(error["input"], ensure_ascii=False, default=str)
            value = "" if error["type"] == "missing" else f" is {given:.60}"
            if error["type"] == "json_invalid":
                place, value = "", ""
            place, reason = place.lstrip(".") or "The body", error["msg"].rstrip(".")
            raise InputError(f"{place}{value}: {reason}. See /docs.") from None

    async def read_body(self, request: Request) -> bytes:
        limit = self.options.max_body_bytes
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                chunks.append(chunk)
            elif size > DISCARDED_BODIES * limit:
                break
        if size > limit:
            message = f"The body has more than {limit:,} bytes; send fewer texts at once, or raise --max-body-bytes."
            headers = {"Connection": "close"} if size > DISCARDED_BODIES * limit else None
            raise ApiError(413, "body_too_large", message, headers)
        return b"".join(chunks)

    async def predict(
        self,
        request: Request,
        texts: Sequence[str],
        known: Sequence[Sequence[Any]] | None = None,
        forbidden: Sequence[Sequence[Any]] | None = None,
        **options: Any,
    ) -> list[Document | Exception]:
        """The document of each text, or what is wrong with it; raises an ApiError for the whole request.

        `options`: those of `Pipeline.predict_options`. The request is dropped if its client goes away.
        """
        deadline = time.monotonic() + self.options.timeout
        pipeline = self.queue.check_open()
        for name, values in {"known": known, "forbidden": forbidden}.items():
            if values is not None and len(values) != len(texts):
                counts = f"{plural(len(values), 'list')} for {plural(len(texts), 'text')}"
                raise InputError(f"{name} has {counts}; give one for each.")
        known, forbidden = known or [()] * len(texts), forbidden or [()] * len(texts)
        if sum(map(len, (*known, *forbidden))) > MAX_CONSTRAINTS:
            message = f"The request has more than {MAX_CONSTRAINTS:,} known and forbidden spans; send fewer texts."
            raise ApiError(413, "too_many_spans", message)
        try:
            predict_options = pipeline.predict_options(**options)
        except TypeError as error:
            raise InputError(str(error)) from None
        self.check_words(sum(max(1, len(text.split())) for text in texts))  # at least so many
        arguments = pipeline, predict_options, texts, known, forbidden
        if sum(map(len, texts)) > INLINE_CHARACTERS:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    prepared = await asyncio.to_thread(self.prepare_within_limit, *arguments)
            except TimeoutError:
                raise self.timeout_error() from None
        else:
            prepared = prepare(*arguments)
        items = [item for item in prepared if isinstance(item, Item)]
        self.check_words(sum(item.words for item in items))
        documents: dict[Item, Document | Exception] = {}
        if items:
            self.queue.submit(items)
            documents = dict(zip(items, await self.wait(request, items, deadline), strict=True))
        return [documents[item] if isinstance(item, Item) else item for item in prepared]

    def prepare_within_limit(
        self, pipeline: Pipeline, options: PredictOptions, texts: Sequence[str], *spans: Any
    ) -> Any:
        """`prepare`, but texts that have too many words are refused before all of them are split.

        Parts of a text have at most a few words more than they have in the text, at their ends.
        """
        words = 0
        for text in texts:
            for start in range(0, len(text) if len(text) > PART_CHARACTERS else 0, PART_CHARACTERS):
                part = pipeline.split(text[start : start + PART_CHARACTERS])
                words += max(0, count_words(part) - MAX_CHUNK)
                self.check_words(words)
        return prepare(pipeline, options, texts, *spans)

    def timeout_error(self) -> ApiError:
        message = f"No answer within {self.options.timeout:g} s; send fewer words, or try again later."
        return ApiError(504, "timeout", message)

    def check_words(self, words: int) -> None:
        if words > self.options.max_request_words:
            limit = self.options.max_request_words
            message = f"The request has {words:,} words and texts or more; the limit is {limit:,}. Send fewer at once."
            raise ApiError(413, "too_many_words", message)

    async def wait(self, request: Request, items: Sequence[Item], deadline: float) -> list[Document | Exception]:
        """The results of all items; if the client goes away or time is up, what still waits is dropped."""

        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        async def gather() -> list[Document | Exception]:  # a task may be canceled without a line in the log
            futures = [asyncio.wrap_future(item.future) for item in items]
            return await asyncio.gather(*futures, return_exceptions=True)  # type: ignore[return-value]

        results, gone = asyncio.create_task(gather()), asyncio.create_task(disconnected())
        futures: set[asyncio.Future[Any]] = {results, gone}
        try:
            seconds = max(0.0, deadline - time.monotonic())
            done, _ = await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if results in done:
                return results.result()
            if gone in done:
                raise ClientDisconnect
            raise self.timeout_error()
        finally:
            results.cancel()
            gone.cancel()
            self.queue.cancel(items)


def prepare(
    pipeline: Pipeline,
    options: PredictOptions,
    texts: Sequence[str],
    known: Sequence[Sequence[Any]],
    forbidden: Sequence[Sequence[Any]],
) -> list[Item | Document | Exception]:
    """Each text as an item for the queue, as a document if it has no words, or as an error."""
    prepared: list[Item | Document | Exception] = []
    for text, known_spans, forbidden_spans in zip(texts, known, forbidden, strict=True):
        try:
            document, constraints = pipeline.prepare(text, known_spans, forbidden_spans)
        except InputError as error:
            prepared.append(error)
        else:
            words = count_words(document)
            prepared.append(Item(document, constraints, options, words) if words else document)
    return prepared


def create_app(pipeline: Pipeline | Callable[[], Pipeline], options: ServeOptions | None = None) -> FastAPI:
    """The application for a pipeline, or for a function that loads one in the background."""
    options = options or ServeOptions()
    service = Service((lambda: pipeline) if isinstance(pipeline, Pipeline) else pipeline, options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.queue.thread.start()
        yield
        await asyncio.to_thread(service.queue.close)

    app = FastAPI(
        title="nestree",
        version=__version__,
        description="Nested named entity recognition. Errors are {'error': {'code', 'message'}}.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    add_routes(app, service)
    annotation_tools.add_routes(app, service)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path[:100]}: {error.detail}. /docs lists what there is."
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return ApiError(error.status_code, code, message, error.headers).response()

    paths = {route.path for route in app.routes if hasattr(route, "path")}
    app.add_middleware(Guard, options=options, queue=service.queue, paths=dict.fromkeys(paths))
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["retry-after"],
        )
    return app


def add_routes(app: FastAPI, service: Service) -> None:
    queue, options = service.queue, service.options

    schema = {"application/json": {"schema": EntitiesRequest.model_json_schema()}}

    @app.post("/v1/entities", openapi_extra={"requestBody": {"required": True, "content": schema}})
    async def entities(request: Request) -> Response:
        """The entities of texts: {"model": ..., "documents": [...]}.

        A document is what `Document.to_dict` returns; nestree/data/document.schema.json describes it. A text that
        cannot be read, or whose known and forbidden spans do not fit, has {"error": {...}} in place of its document.
        """
        queue.check_open()
        body = await service.read_json(request, EntitiesRequest)
        chosen = {"threshold": body.threshold, "labels": body.labels, "trees": bool(body.trees)}
        results = await service.predict(request, body.texts, body.known, body.forbidden, **chosen)
        documents = []
        for result in results:
            if isinstance(result, Document):
                tree = {"tree": result.tree.to_dict()} if body.trees else {}
                documents.append({**result.to_dict(), **tree})
            elif isinstance(result, InputError):
                documents.append(ApiError(422, "invalid", str(result)).to_dict())
            else:
                message = f"This text could not be read: {type(result).__name__}."
                documents.append(ApiError(500, "failed", message).to_dict())
        answer = {"model": options.model_name, "documents": documents}
        content = json.dumps(answer, ensure_ascii=False, allow_nan=False)
        return Response(content.encode(), media_type="application/json")

    @app.get("/v1/labels")
    async def labels() -> Any:
        """The labels of the model, with their descriptions and the indices of their colors, and its own threshold."""
        pipeline = queue.get_pipeline()
        return {
            "labels": [
                {"label": label, "description": text, "color": color_index(label)}
                for label, text in pipeline.labels.items()
            ],
            "threshold": pipeline.model.settings.decoding.threshold,
        }

    @app.get("/health")
    async def health() -> Any:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Any:
        """Whether the server accepts requests: 503 while the model is loaded, and while the server shuts down."""
        queue.get_pipeline()
        return {"status": "ready"}

    @app.get("/info")
    async def info() -> Any:
        """The model, the version, the precision and the limits."""
        pipeline = queue.get_pipeline()
        return {
            "model": options.model_name,
            "version": __version__,
            "device": str(pipeline.device),
            "precision": pipeline.inference_precision,
            "limits": {field.name: getattr(options, field.name) for field in fields(Limits)},
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        gauges = {
            "queue_requests": (len(queue.waiting), "Requests that wait."),
            "queue_words": (queue.waiting_words, "Words that wait."),
            "words_per_second": (queue.words_per_second, "Speed of the last large batches."),
            "ready": (queue.pipeline is not None and not queue.draining, "1 if requests are accepted."),
        }
        return PlainTextResponse(service.metrics.to_prometheus(gauges), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The API as a page without scripts."""
        schema = app.openapi()
        operations = [
            (method.upper(), path, operation, json.dumps(operation.get("requestBody"), indent=2))
            for path, methods in schema["paths"].items()
            for method, operation in methods.items()
        ]
        page = render("serve/docs.html.jinja", info=schema["info"], operations=operations)
        return HTMLResponse(page)

    @app.get("/static/shared.css", include_in_schema=False)
    async def shared_styles() -> Response:
        """The styles that the page shares with `nestree show`."""
        return Response("\n".join(map(render, SHARED_STYLES)), media_type="text/css")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse((PAGE / "index.html").read_text("utf-8"))

    app.mount("/static", StaticFiles(directory=PAGE), name="static")
