"""Streams: the events of a reply, and the deltas of an answer; blocking and async."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from .answer import Answer, Collected, Delta, delta_of
from .errors import RequestError, request_error

if TYPE_CHECKING:
    from ._native import Replies, Reply
    from .options import Parser

#: Seconds between two updates of a notebook.
REFRESH = 0.1


async def ready(source: Reply | Replies) -> Any:
    """The next piece of a reply, without blocking the event loop. Cancelling it cancels the request."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            future = loop.create_future()
            piece = source.poll(functools.partial(_wake, loop, future))
            if piece is not ...:
                return piece
            await future
    except BaseException:
        source.cancel()
        raise


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def cancelled() -> RequestError:
    """The error of a request that ended without a response."""
    return RequestError(
        499, {"message": "the request was cancelled", "type": "server_error", "code": "cancelled"}
    )


class _Parts:
    """Splits the body of a stream into its JSON values."""

    def __init__(self, content_type: str) -> None:
        self.lines = content_type.startswith("application/x-ndjson")
        self.rest = b""

    def take(self, piece: bytes) -> list[Any]:
        *whole, self.rest = (self.rest + piece).split(b"\n" if self.lines else b"\n\n")
        values = []
        for part in whole:
            for line in part.splitlines():
                data = (
                    line
                    if self.lines
                    else line.removeprefix(b"data: ")
                    if line.startswith(b"data: ")
                    else b""
                )
                if data.strip() and data != b"[DONE]":
                    values.append(json.loads(data))
        return values


class _EventsBase:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._parts = _Parts(reply.content_type)
        self._values: list[Any] = []

    def close(self) -> None:
        """Cancels the request."""
        self._reply.cancel()


class Events(_EventsBase, Iterator[Any]):
    """The events of a streamed reply as JSON values. Closing or dropping it cancels the request."""

    def __next__(self) -> Any:
        while not self._values:
            piece = self._reply.wait()
            if piece is None:
                raise StopIteration
            self._values = self._parts.take(piece)
        return self._values.pop(0)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncEvents(_EventsBase, AsyncIterator[Any]):
    """As ``Events``, for ``async for``. Cancelling the task cancels the request."""

    async def __anext__(self) -> Any:
        while not self._values:
            piece = await ready(self._reply)
            if piece is None:
                raise StopAsyncIteration
            self._values = self._parts.take(piece)
        return self._values.pop(0)

    async def aclose(self) -> None:
        """Cancels the request."""
        self.close()


def whole_reply(reply: Reply, text: bytes) -> Any:
    """The value of a whole reply; an error is raised."""
    if reply.status >= 400:
        raise request_error(reply.status, text)
    if reply.content_type.startswith("application/json"):
        return json.loads(text)
    return text.decode(errors="replace")


def is_stream(reply: Reply) -> bool:
    """Whether a reply is a stream of events or lines."""
    streams = ("text/event-stream", "application/x-ndjson")
    return reply.status < 400 and reply.content_type.startswith(streams)


def open_reply(reply: Reply) -> Any:
    """The value of a reply, or its events if it is streamed."""
    if reply.wait() is None:
        raise cancelled()
    if is_stream(reply):
        return Events(reply)
    text = b""
    while (piece := reply.wait()) is not None:
        text += piece
    return whole_reply(reply, text)


async def open_reply_async(reply: Reply) -> Any:
    """As ``open_reply``, without blocking the event loop."""
    if await ready(reply) is None:
        raise cancelled()
    if is_stream(reply):
        return AsyncEvents(reply)
    text = b""
    while (piece := await ready(reply)) is not None:
        text += piece
    return whole_reply(reply, text)


class _Reading:
    """Reads deltas from events, and collects them."""

    def __init__(self, parser: Parser | None, logprobs: bool) -> None:
        self._new = functools.partial(Collected, parser, logprobs)
        self._choices: dict[int, Collected] = {}
        self._usage: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> list[Delta]:
        if "error" in event:
            raise RequestError(500, event["error"])
        self._usage = event.get("usage") or self._usage
        deltas = [delta_of(choice) for choice in event["choices"]]
        for delta in deltas:
            self._choices.setdefault(delta.index, self._new()).add(delta)
        # the first event of a chat has a role only
        return [delta for delta in deltas if delta != Delta(index=delta.index)]

    def answers(self) -> list[Answer]:
        return [self._choices[index].answer(self._usage) for index in sorted(self._choices)]


class Stream(Iterator[Delta]):
    """An answer as it is generated. Closing or dropping it cancels the request.

    >>> from tern_llm import Model
    >>> with Model("stories").stream("Once upon a time", max_tokens=8, temperature=0) as stream:
    ...     for delta in stream:
    ...         if "girl" in stream.text:
    ...             break
    >>> stream.text
    ', there was a little girl'
    """

    def __init__(self, events: Events, reading: _Reading) -> None:
        self._events = events
        self._reading = reading
        self._deltas: list[Delta] = []

    def __next__(self) -> Delta:
        while not self._deltas:
            try:
                self._deltas = self._reading.take(next(self._events))
            except RequestError:
                self.close()
                raise
        return self._deltas.pop(0)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the request."""
        self._events.close()

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        first = self._reading._choices.get(0)
        return first.whole.text if first else ""

    def wait(self) -> Answer:
        """Waits for the rest; the answer, or that of the first choice."""
        for _ in self:
            pass
        return self._reading.answers()[0]

    def show(self) -> Answer:
        """Prints the text as it is generated, in a notebook as HTML, and returns the answer."""
        from .notebook import live_html

        shown, last = live_html(), 0.0
        for delta in self:
            if shown is None:
                print(delta.text, end="", flush=True)
            elif (now := time.monotonic()) - last >= REFRESH:
                shown(self._reading.answers()[0]._repr_html_())
                last = now
        answer = self._reading.answers()[0]
        if shown is None:
            print()
        else:
            shown(answer._repr_html_())
        return answer


class AsyncStream(AsyncIterator[Delta]):
    """As ``Stream``, for ``async for``. It starts at once; cancelling the task cancels it."""

    def __init__(self, reply: Reply, reading: _Reading) -> None:
        self._reply = reply
        self._events: AsyncEvents | None = None
        self._reading = reading
        self._deltas: list[Delta] = []

    async def __anext__(self) -> Delta:
        if self._events is None:
            self._events = await open_reply_async(self._reply)
        while not self._deltas:
            try:
                self._deltas = self._reading.take(await self._events.__anext__())
            except RequestError:
                self._reply.cancel()
                raise
        return self._deltas.pop(0)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancels the request."""
        self._reply.cancel()

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        first = self._reading._choices.get(0)
        return first.whole.text if first else ""

    async def wait(self) -> Answer:
        """Waits for the rest; the answer, or that of the first choice."""
        async for _ in self:
            pass
        return self._reading.answers()[0]


def reading(parser: Parser | None, logprobs: bool) -> _Reading:
    """What reads the deltas of a request."""
    return _Reading(parser, logprobs)
