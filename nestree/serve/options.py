"""The options of the server, and the errors that clients get."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """What a request may cost; `nestree serve --help` describes the limits, and /info shows them."""

    max_body_bytes: int = 2_000_000
    max_request_words: int = 20_000
    max_waiting_requests: int = 512
    max_waiting_words: int = 200_000
    timeout: float = 30.0  # seconds from the first byte of a request to its answer


@dataclass(frozen=True)
class ServeOptions(Limits):
    """Limits and access."""

    model_name: str = "nestree"
    batch_words: int | None = None  # predicted together; None: the default of the device
    api_key: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS  # values of the header Host, without ports; "*": any
    cors_origins: tuple[str, ...] = ()  # such as "https://example.org": pages that may call the API


class ApiError(Exception):
    """An answer other than 200; the message gives the value, the place and the remedy."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers

    def to_dict(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}

    def response(self) -> "JSONResponse":
        from fastapi.responses import JSONResponse

        return JSONResponse(self.to_dict(), self.status, self.headers)
