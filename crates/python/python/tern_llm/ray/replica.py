"""A replica: the actor that owns a server, and passes requests on to it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from .child import Child, ChildError
from .config import ModelConfig

logger = logging.getLogger("ray.serve")


@dataclass
class Forwarded:
    """A request on its way from the ingress to a replica."""

    method: str
    #: with its query
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    #: what a router compares; a text or messages
    prompt: Any = field(default="")


class Replica:
    """One engine. Ray replaces it if its server ends or is stuck."""

    async def __init__(self, config: ModelConfig, api_key_file: str | None) -> None:
        self.config = config
        args = config.arguments()
        if api_key_file:
            args.append(f"--api-key-file={api_key_file}")
        self.child = Child(args, config.env, lambda line: logger.info("%s", line))
        await self.child.ready(config.load_timeout)  # Ray counts the replica as started after this

    async def forward(self, request: Forwarded) -> AsyncIterator[Any]:
        """The head of the response, and then the pieces of its body."""
        async for piece in self.child.request(request.method, request.path, request.headers, request.body):
            yield piece

    async def metrics(self, headers: list[tuple[str, str]]) -> tuple[int, str, int]:
        """The status and the metrics of this replica, and the process of its server."""
        status, text = 0, b""
        async for piece in self.child.request("GET", "/metrics", headers, b""):
            if isinstance(piece, tuple):
                status = piece[0]
            else:
                text += piece
        return status, text.decode(errors="replace"), self.child.pid

    async def check_health(self) -> None:
        """Raises if the server has ended or is stuck; Ray then replaces the replica."""
        await self.child.check()

    def __del__(self) -> None:
        # Ray has waited for the requests; a replica that is killed closes the pipe instead
        child: Child | None = getattr(self, "child", None)
        if child is not None:
            child.drain(self.config.drain_timeout + 5)


__all__ = ["ChildError", "Forwarded", "Replica"]
