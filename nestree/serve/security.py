"""Who may call the server: hosts, origins, the key; security headers; every error becomes JSON.

Texts never reach a log: unexpected errors are logged by their type and place, without their message.
"""

import base64
import hmac
import logging
import time
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nestree.errors import InputError
from nestree.serve.options import ApiError, ServeOptions
from nestree.serve.queue import PredictionQueue

log = logging.getLogger(__name__)

# These need no key: the page asks for it, load balancers have none, and Label Studio sends none with its events.
OPEN_PATHS = ("/", "/health", "/ready", "/favicon.ico", "/label-studio/webhook")
CLIENT_CLOSED = 499  # in metrics, as nginx counts it
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware: checks a request before it is routed, and counts it."""

    def __init__(self, app: ASGIApp, options: ServeOptions, queue: PredictionQueue, paths: Mapping[str, Any]) -> None:
        self.app, self.options, self.queue, self.paths = app, options, queue, paths
        self.metrics = queue.metrics
        self.key = options.api_key.encode() if options.api_key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        scope = {**scope, "path": scope["path"].rstrip("/") or "/"}  # a redirect would lose https behind a proxy

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                if self.queue.draining:
                    headers["Connection"] = "close"
                headers.setdefault("Cache-Control", "no-cache" if is_static(scope["path"]) else "no-store")
            await send(message)

        try:
            self.check(scope["path"], Headers(scope=scope))
            # HEAD is answered as GET; the server does not send the body.
            routed = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            await self.app(routed, receive, send_with_headers)
        except (ApiError, InputError) as error:
            answer = error if isinstance(error, ApiError) else ApiError(422, "invalid", str(error))
            self.metrics.rejected[answer.code] += 1
            await answer.response()(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = CLIENT_CLOSED
        except Exception as error:
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s %s: %s\n%s", scope["method"], self.path(scope), type(error).__name__, frames)
            self.metrics.rejected["internal"] += 1
            if not status:
                message = "The server failed on this request; its log says where."
                await ApiError(500, "internal", message).response()(scope, receive, send_with_headers)
        finally:
            seconds, path = time.perf_counter() - started, self.path(scope)
            self.metrics.requests[path, status] += 1
            self.metrics.request_seconds.observe(seconds, path)
            log.info("%s %s %d %.1f ms", scope["method"], path, status, 1000 * seconds)

    def path(self, scope: Scope) -> str:
        """The path if the server has it: others come from clients, who may write anything."""
        path = scope["path"]
        return path if path in self.paths else "/static" if is_static(path) else "other"

    def check(self, path: str, headers: Headers) -> None:
        """Raise an ApiError for a wrong host, origin or key."""
        host, allowed = headers.get("host", ""), self.options.allowed_hosts
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if "*" not in allowed and name.lower() not in allowed:
            message = f"The header Host is {host[:100]!r}; allow it with --allowed-host."
            raise ApiError(400, "wrong_host", message)
        origin, own = headers.get("origin"), (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in (*self.options.cors_origins, *own):
            message = f"Pages of {origin[:100]!r} may not call this server; allow them with --cors-origin."
            raise ApiError(403, "wrong_origin", message)
        if self.key is None or path in OPEN_PATHS or is_static(path):
            return
        if not hmac.compare_digest(parse_key(headers.get("authorization", "")), self.key):
            # A browser asks for a password if it opens a page, but not for the calls of a page, which ask themselves.
            scheme = "Basic" if "text/html" in headers.get("accept", "") else "Bearer"
            message = "This server needs its API key: send it as Authorization: Bearer KEY, or as Basic password."
            raise ApiError(401, "wrong_key", message, {"WWW-Authenticate": f'{scheme} realm="nestree"'})


def is_static(path: str) -> bool:
    return path == "/" or path.startswith("/static/")


def parse_key(authorization: str) -> bytes:
    """The key in the header Authorization; empty if there is none.

    >>> parse_key("Bearer abc"), parse_key("Basic " + base64.b64encode(b"anyone:abc").decode())
    (b'abc', b'abc')
    """
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")  # the bytes that were sent
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:  # not base64, or not ASCII
            return b""
    return b""
