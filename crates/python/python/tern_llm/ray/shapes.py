"""Errors in the shape of each API, whole and as the last event of a stream, as the server writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """An error response."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after: int | None = None

    def body(self, path: str) -> bytes:
        """The body of the response."""
        return _json(self._shaped(path))

    def event(self, path: str) -> bytes:
        """The last event of a stream that has begun."""
        if _is_lines(path):
            return _json(self._shaped(path)) + b"\n"
        if path.startswith("/v1/messages"):
            return b"event: error\ndata: " + _json(self._shaped(path)) + b"\n\n"
        if path.startswith("/v1/responses"):
            data = {
                "type": "error",
                "code": self.code,
                "message": self.message,
                "param": self.param,
                "sequence_number": 0,
            }
            return b"event: error\ndata: " + _json(data) + b"\n\n"
        return b"data: " + _json(self._shaped(path)) + b"\n\n"

    def _shaped(self, path: str) -> Any:
        if path.startswith("/api/"):
            return {"error": self.message}
        if path.startswith("/v1/messages"):
            kind = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large"}
            kind |= {429: "rate_limit_error", 503: "overloaded_error"}
            return {
                "type": "error",
                "error": {"type": kind.get(self.status, "api_error"), "message": self.message},
            }
        if path in ("/v1/embed", "/v2/embed", "/v2/rerank"):
            return {"message": self.message}
        kind = (
            "rate_limit_error"
            if self.status == 429
            else "server_error"
            if self.status >= 500
            else "invalid_request_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Events:
    """Passes on whole events of a stream, so that an error can follow them."""

    def __init__(self, path: str) -> None:
        self._end = b"\n" if _is_lines(path) else b"\n\n"
        self._rest = b""

    def take(self, piece: bytes) -> bytes:
        """The events that are complete with this piece."""
        self._rest += piece
        at = self._rest.rfind(self._end)
        if at < 0:
            return b""
        at += len(self._end)
        whole, self._rest = self._rest[:at], self._rest[at:]
        return whole

    def rest(self) -> bytes:
        """What is left at the end of a whole stream."""
        return self._rest


def _is_lines(path: str) -> bool:
    return path.startswith("/api/")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
