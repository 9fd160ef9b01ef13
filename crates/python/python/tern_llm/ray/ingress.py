"""The ingress: all routes of the server behind one address. It reads a request, finds its model, and passes
the response on, event by event.

A replica that ends takes its responses with it. What had not begun is sent to another replica; a stream that
had begun ends with an error event, because its rest would be another text.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from .config import Config
from .replica import Forwarded
from .shapes import Events, Failure

logger = logging.getLogger("ray.serve")

#: Replicas that a request is sent to before it fails.
ATTEMPTS = 3
#: Seconds between two of them.
PAUSE = 0.2
#: What means that a replica or its server is gone.
GONE = (RayActorError, RayTaskError, ReplicaUnavailableError)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[str, str]]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Ingress:
    """The ASGI application in front of the models' deployments."""

    def __init__(self, config: Config, *handles: Any) -> None:
        self.config = config
        self.models = list(zip(config.models, handles))

    def __serve_build_asgi_app__(self) -> Any:
        async def app(scope: dict[str, Any], receive: Any, send: Send) -> None:
            await self._asgi(scope, receive, send)

        return app  # a function: uvicorn takes a method for an application of ASGI 2

    async def _asgi(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            path = _path(scope)
            try:
                await self._http(scope, path, receive, send)
            except Refused as refused:
                await _send_failure(send, path, refused.failure)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _http(self, scope: dict[str, Any], path: str, receive: Any, send: Send) -> None:
        method = scope["method"]
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        if (method, path) == ("GET", "/health"):
            await _send_whole(send, 200, [("content-type", "application/json")], b'{"status":"ok"}')
            return
        if (method, path) == ("GET", "/metrics"):
            await self._metrics(headers, send)
            return
        body = await _body(receive, self.config.max_body << 20)
        query = scope.get("query_string", b"").decode("latin-1")
        request = Forwarded(method, f"{path}?{query}" if query else path, headers, body)
        if (method, path) == ("GET", "/v1/models") and len(self.models) > 1:
            await self._list(request, send)
            return
        parsed = _parsed(body)
        handle = self._handle(path, parsed)
        request.prompt = parsed.get("messages") or parsed.get("prompt") or parsed.get("input") or ""
        if session := next((value for name, value in headers if name.lower() == "x-session-id"), ""):
            handle = handle.options(session_id=session)
        await self._pass_on(handle, request, path, send)

    def _handle(self, path: str, parsed: dict[str, Any]) -> Any:
        """The deployment of the model that a request names, or the first."""
        named = parsed.get("model")
        if path.startswith("/v1/models/"):
            named = path.removeprefix("/v1/models/")
        if len(self.models) == 1 or not isinstance(named, str):
            return self.models[0][1]  # whose server checks the name
        for model, handle in self.models:
            if named.removesuffix(":latest") in model.names:
                return handle
        known = ", ".join(name for model, _ in self.models for name in model.names)
        message = f"the model {named[:100]!r} does not exist; this cluster has {known}"
        raise Refused(Failure(404, message, "model_not_found", "model"))

    async def _pass_on(self, handle: Any, request: Forwarded, path: str, send: Send) -> None:
        """Sends the response of a replica, or of another one if it is gone before anything was sent."""
        for attempt in range(1, ATTEMPTS + 1):
            response = _Response(path, send)
            pieces = _start(handle, request)
            try:
                async for piece in pieces:
                    await response.take(piece)
                await response.end()
                return
            except GONE as error:
                logger.warning("%s: a replica is gone: %s", path, str(error).strip().splitlines()[-1:])
                if response.begun:
                    message = (
                        "the replica that generated this text is gone; send the request again for a new text"
                    )
                    await response.fail(Failure(503, message, "replica_lost"))
                    return
                if attempt == ATTEMPTS:
                    message = f"{ATTEMPTS} replicas were lost while they answered this request"
                    raise Refused(Failure(503, message, "replica_lost", retry_after=5)) from error
                await asyncio.sleep(PAUSE * attempt)
            finally:
                await pieces.aclose()  # also if the client has gone: the replica then cancels the request

    async def _list(self, request: Forwarded, send: Send) -> None:
        """The models of all deployments."""
        data: list[Any] = []
        for _, handle in self.models:
            status, headers, body = await _collect(handle, request)
            if status != 200:
                await _send_whole(send, status, headers, body)
                return
            data += json.loads(body)["data"]
        text = json.dumps({"object": "list", "data": data}).encode()
        await _send_whole(send, 200, [("content-type", "application/json")], text)

    async def _metrics(self, headers: Headers, send: Send) -> None:
        """The metrics of all replicas, which differ by the label `replica`."""
        texts = []
        for model, handle in self.models:
            results = await handle.broadcast("metrics", headers).results_async(
                timeout_s=10, return_exceptions=True
            )
            for status, text, replica in (result for result in results if isinstance(result, tuple)):
                if status != 200:
                    await _send_whole(send, status, [("content-type", "application/json")], text.encode())
                    return
                texts.append((f"{model.name}-{replica}", text))
        await _send_whole(send, 200, [("content-type", "text/plain; version=0.0.4")], merged(texts).encode())


class _Response:
    """A response on its way to the client."""

    def __init__(self, path: str, send: Send) -> None:
        self.begun = False
        self._path, self._send = path, send
        self._status, self._headers = 0, []  # type: int, Headers
        self._events: Events | None = None
        self._whole = b""

    async def take(self, piece: Any) -> None:
        """Takes the head, or a piece of the body."""
        if isinstance(piece, tuple):
            self._status, self._headers = piece
            kind = next((value for name, value in self._headers if name.lower() == "content-type"), "")
            if kind.startswith(("text/event-stream", "application/x-ndjson")):
                self._events = Events(self._path)
        elif self._events is None:
            self._whole += piece
        elif whole := self._events.take(piece):
            await self._begin()
            await self._send({"type": "http.response.body", "body": whole, "more_body": True})

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._send(_head(self._status, self._headers))

    async def end(self) -> None:
        """The response is whole."""
        rest = self._whole if self._events is None else self._events.rest()
        if self._status == 0:
            raise Refused(Failure(502, "the replica sent no response", "replica_lost"))
        if self._events is None:
            self._headers = [*self._headers, ("content-length", str(len(rest)))]
        await self._begin()
        await self._send({"type": "http.response.body", "body": rest, "more_body": False})

    async def fail(self, failure: Failure) -> None:
        """The rest is missing: an event says so."""
        await self._send(
            {"type": "http.response.body", "body": failure.event(self._path), "more_body": False}
        )


async def _start(handle: Any, request: Forwarded) -> AsyncIterator[Any]:
    """The pieces of a replica's response. Closing it cancels the request."""
    try:
        pieces = handle.options(stream=True).forward.remote(request)
        ended = False
        try:
            async for piece in pieces:
                yield piece
            ended = True
        finally:
            if not ended:
                pieces.cancel()
    except BackPressureError as error:
        failure = Failure(429, "all replicas are busy and the queue is full", "queue_full", retry_after=1)
        raise Refused(failure) from error
    except DeploymentUnavailableError as error:
        raise Refused(Failure(503, error.message, "deployment_failed", retry_after=5)) from error


async def _collect(handle: Any, request: Forwarded) -> tuple[int, Headers, bytes]:
    """A whole response."""
    for attempt in range(1, ATTEMPTS + 1):
        status, headers, body = 0, [], b""  # type: int, Headers, bytes
        try:
            async for piece in _start(handle, request):
                if isinstance(piece, tuple):
                    status, headers = piece
                else:
                    body += piece
            return status, headers, body
        except GONE as error:
            if attempt == ATTEMPTS:
                raise Refused(Failure(503, "no replica answered", "replica_lost", retry_after=5)) from error
            await asyncio.sleep(PAUSE * attempt)
    raise AssertionError("unreachable")


def merged(texts: list[tuple[str, str]]) -> str:
    """The metrics of several replicas: each series with the label of its replica, each family once."""
    families: dict[str, list[str]] = {}
    for replica, text in texts:
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split()[2]
                lines = families.setdefault(family, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                name, _, rest = line.partition(" ")
                label = f'replica="{replica}"'
                labelled = (
                    name.replace("{", "{" + label + ",", 1) if "{" in name else name + "{" + label + "}"
                )
                if "{" in line and "{" not in name:
                    labelled, rest = line.replace("{", "{" + label + ",", 1), ""
                families.setdefault(family, []).append(f"{labelled} {rest}".rstrip())
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _path(scope: dict[str, Any]) -> str:
    root = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return (path.removeprefix(root) if root and path.startswith(root + "/") else path) or "/"


def _parsed(body: bytes) -> dict[str, Any]:
    """A body as far as routing needs it; the server reports what is wrong with it."""
    try:
        value = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def _body(receive: Any, limit: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise Refused(
                Failure(413, f"the request body exceeds the limit of {limit} bytes", "body_too_large")
            )
    return bytes(body)


def _head(status: int, headers: Headers) -> dict[str, Any]:
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": encoded}


async def _send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
    await send(_head(status, [*kept, ("content-length", str(len(body)))]))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_failure(send: Send, path: str, failure: Failure) -> None:
    headers = [("content-type", "application/json")]
    if failure.retry_after is not None:
        headers.append(("retry-after", str(failure.retry_after)))
    await _send_whole(send, failure.status, headers, failure.body(path))


async def _lifespan(receive: Any, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
