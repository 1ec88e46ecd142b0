"""The process: uvicorn, signals and loading."""

import asyncio
import errno
import logging
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from nestree.errors import InputError
from nestree.pipeline import Pipeline
from nestree.serve.app import Service, create_app
from nestree.serve.options import ServeOptions

WARN_EVERY = 10.0  # seconds between warnings that no more connections can be accepted


def run(
    load: Callable[[], Pipeline],
    options: ServeOptions,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; what was accepted by then is answered first.

    `on_start` is called with the address as soon as the server listens, which is before the model is loaded.
    """
    app = create_app(load, options)
    queue = app.state.service.queue
    listener = open_socket(host, port)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=75,  # longer than proxies keep connections, which would otherwise use one that is closed
        timeout_graceful_shutdown=int(options.timeout) + 5,
    )
    server = Server(config)
    server.service = app.state.service
    queue.on_load_error = lambda: setattr(server, "should_exit", True)
    # For the time until uvicorn sets its own. It restores this one and raises the signal again when it is done.
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        if on_start:
            name = f"[{host}]" if ":" in host else host
            on_start(f"http://{name}:{listener.getsockname()[1]}")
        server.run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, before)
        listener.close()
        queue.close()  # uvicorn does not if it was asked to end before it began
    if queue.load_error is not None:
        raise queue.load_error


class Server(uvicorn.Server):
    """Accepts no more requests once a signal asks it to end."""

    service: Service
    warned_at = -WARN_EVERY  # by time.monotonic()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.handle_exception)
        await super().startup(sockets)

    def handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio would log a traceback for each try to accept a connection while no file can be opened."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - self.warned_at >= WARN_EVERY:
            self.warned_at = time.monotonic()
            logging.getLogger(__name__).warning(
                "%s: new connections wait until others end. Raise the limit of the process (ulimit -n).", error.strerror
            )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.queue.draining and sig == signal.SIGINT:  # uvicorn cancels all requests, and would log each
            logging.getLogger("uvicorn.error").disabled = True
        self.service.queue.draining = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for timeout in self.service.bodies:
            timeout.reschedule(0)  # these requests would be refused, and their clients may be gone
        await super().shutdown(sockets)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another --host or --port."
        ) from None
    return listener
