#!/usr/bin/env python3
"""A reverse proxy in front of `tern serve`, for tests of the chat page and for work on it.

    scripts/browser/proxy.py URL                   http://127.0.0.1:PORT/ forwards to URL
    scripts/browser/proxy.py URL --prefix /tern    the same below a path
    scripts/browser/proxy.py URL --files           the page's files come from this checkout: edit one and reload

Responses are forwarded while they arrive, at `bytes_per_s` if it is set, and not at all while `offline` is: Firefox has
no other slow network for tests. `scripted` answers a route instead of the server, which is how tests get
answers that no small model gives.
"""

from __future__ import annotations

import argparse
import http.client
import mimetypes
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

UI = Path(__file__).resolve().parents[2] / "crates/server/ui"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HOP = {"connection", "keep-alive", "transfer-encoding", "host"}

# What answers a request instead of the server: it gets the handler and the body, and returns whether it
# answered.
Script = Callable[["Handler", bytes], bool]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def forward(self) -> None:
        try:
            self.answer()
        except (ConnectionError, TimeoutError, http.client.HTTPException):
            self.close_connection = True  # one of both ends has gone

    do_GET = do_POST = do_DELETE = do_OPTIONS = forward

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.server.offline:
            raise ConnectionError
        prefix = self.server.prefix
        if not self.path.startswith(prefix + "/"):
            return self.reply(404, b"not below the prefix", "text/plain")
        self.path = self.path[len(prefix) :]
        if any(script(self, body) for script in self.server.scripted):
            return
        if self.server.files and self.own_file():
            return
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        if "origin" in {name.lower() for name in headers}:
            headers["Origin"] = f"http://{self.server.upstream}"
        upstream.request(self.command, self.path, body, headers)
        answer = upstream.getresponse()
        self.begin(answer.status, [(n, v) for n, v in answer.getheaders() if n.lower() not in HOP | {"content-length"}])
        while piece := answer.read1(self.server.bytes_per_s // 20 or 65536):
            self.piece(piece)
            if self.server.bytes_per_s:
                time.sleep(len(piece) / self.server.bytes_per_s)
        self.piece(b"")
        upstream.close()

    def own_file(self) -> bool:
        path = urlsplit(self.path).path
        if path != "/" and not path.startswith("/page/"):
            return False
        file = (UI / ("index.html" if path == "/" else path.removeprefix("/page/"))).resolve()
        if not file.is_relative_to(UI) or not file.is_file():
            self.reply(404, b"", "text/plain")
        else:
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            self.reply(200, file.read_bytes(), kind, {"content-security-policy": POLICY, "cache-control": "no-cache"})
        return True

    def reply(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, status: int, headers: list[tuple[str, str]]) -> None:
        """The head of a response whose length is not known yet; `piece` sends its body."""
        self.send_response(status)
        for name, value in [*headers, ("transfer-encoding", "chunked")]:
            self.send_header(name, value)
        self.end_headers()

    def piece(self, data: bytes) -> None:
        """A part of the body; an empty one ends it."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, url: str, prefix: str = "", files: bool = False, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.upstream = urlsplit(url).netloc
        self.prefix = prefix.rstrip("/")
        self.files = files
        self.bytes_per_s = 0
        self.offline = False
        self.scripted: list[Script] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}{self.prefix}"

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that has gone is no error
            super().handle_error(request, client_address)

    def __enter__(self) -> Proxy:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server, as http://127.0.0.1:8080")
    parser.add_argument("--prefix", default="", help="path below which the server is found")
    parser.add_argument("--files", action="store_true", help="serve the page's files of this checkout")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    with Proxy(arguments.url, arguments.prefix, arguments.files, arguments.port) as proxy:
        print(f"{proxy.url}/", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
