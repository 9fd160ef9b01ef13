"""The server of a replica: a process of its own, so that a fault of a GPU ends it and not the replica."""

from __future__ import annotations

import asyncio
import collections
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp

#: What the server prints when it listens.
LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
#: Seconds until it listens; loading comes later.
LISTEN_TIMEOUT = 60.0
#: Seconds that a health check may take.
HEALTH_TIMEOUT = 5.0
#: Headers of a connection, not of a request.
HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
#: Headers that carry a key.
KEYS = {"authorization", "x-api-key"}


class ChildError(RuntimeError):
    """A server that could not start, or has ended."""


class Child:
    """A running server. It needs a key that only this process knows, as any user of the machine reaches
    its port."""

    def __init__(self, args: Sequence[str], env: dict[str, str], log: Callable[[str], object]) -> None:
        self.key = secrets.token_urlsafe(32)
        self._keys_of_clients = any(arg.startswith("--api-key-file") for arg in args)
        self._last = collections.deque[str](maxlen=20)
        self._log = log
        self._address: str | None = None
        self._listening = threading.Event()
        self._session: aiohttp.ClientSession | None = None
        command = [sys.executable, "-m", "tern_llm.ray.keeper", *args, "--host", "127.0.0.1", "--port", "0"]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **env, "TERN_API_KEY": self.key},
            stdin=subprocess.PIPE,  # never written to: it ends with this process
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._read, daemon=True).start()
        if not self._listening.wait(LISTEN_TIMEOUT) or self._address is None:
            self.kill()
            raise ChildError(f"the server did not start: {self.last_words()}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last.append(line.rstrip())
            self._log(line.rstrip())
            if self._address is None and (found := LISTENING.search(line)):
                self._address = found[1]
                self._listening.set()
        self._listening.set()  # it has ended

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def last_words(self) -> str:
        """The last line that it printed."""
        code = self._process.poll()
        ended = "" if code is None else f"exit code {code}: "
        return ended + (self._last[-1] if self._last else "no message")

    async def ready(self, timeout: float) -> None:
        """Waits until the model is loaded and has generated a token."""
        end = time.monotonic() + timeout
        while True:
            status, body = await self._get("/ready", HEALTH_TIMEOUT * 2)
            if status == 200:
                return
            if self._process.poll() is not None:
                raise ChildError(f"the server has ended: {self.last_words()}")
            if time.monotonic() >= end:
                raise ChildError(
                    f"the model was not ready within {timeout:.0f} s: {body or self.last_words()}"
                )
            await asyncio.sleep(0.1)

    async def check(self) -> None:
        """Raises if the server has ended or is stuck."""
        if self._process.poll() is not None:
            raise ChildError(f"the server has ended: {self.last_words()}")
        status, body = await self._get("/health", HEALTH_TIMEOUT)
        if status != 200:
            raise ChildError(f"the server is not healthy: status {status}: {body}")

    async def _get(self, path: str, timeout: float) -> tuple[int, str]:
        try:
            limit = aiohttp.ClientTimeout(total=timeout)
            headers = {"x-api-key": self.key}
            async with self._connections().get(
                f"{self._address}{path}", headers=headers, timeout=limit
            ) as reply:
                return reply.status, await reply.text()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            return 0, f"{type(error).__name__}: {error}"

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            # no limits: those of the server and of the deployment hold
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
            )
        return self._session

    async def request(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> AsyncIterator[Any]:
        """The head of the response, ``(status, headers)``, and then the pieces of its body as they arrive."""
        dropped = HOP_BY_HOP if self._keys_of_clients else HOP_BY_HOP | KEYS
        sent = [(name, value) for name, value in headers if name.lower() not in dropped]
        if not self._keys_of_clients:
            sent.append(("x-api-key", self.key))
        async with self._connections().request(
            method, f"{self._address}{path}", headers=sent, data=body, allow_redirects=False
        ) as reply:
            kept = [(name, value) for name, value in reply.headers.items() if name.lower() not in HOP_BY_HOP]
            yield reply.status, kept
            async for piece in reply.content.iter_any():
                yield piece

    def drain(self, timeout: float) -> None:
        """Lets running requests finish, and ends the server."""
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends the server at once."""
        self._process.kill()
        self._process.wait()
