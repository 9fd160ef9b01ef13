"""Ray Data: one engine per actor, which rows of all its batches keep full.

    ds = ray.data.read_parquet("questions.parquet")
    ds = ds.map_batches(
        Batch,
        fn_constructor_kwargs={"model": "smollm2", "method": "chat", "column": "question", "max_tokens": 64},
        compute=ray.data.ActorPoolStrategy(size=2),
        batch_size=128,
        num_cpus=1,
    )

A row that fails becomes a row with an ``error``; an exception would end the job. A batch of an actor that
dies is computed again by another one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..answer import answers_of
from ..errors import request_error
from ..model import AHEAD, Model
from ..options import body_of, encode
from ..stream import ready

if TYPE_CHECKING:
    import numpy as np

#: What a row may be, with the route that answers it and the parameter that has it.
METHODS = {
    "generate": ("/v1/completions", "prompt"),
    "chat": ("/v1/chat/completions", "messages"),
    "embed": ("/v1/embeddings", "input"),
    "lines": ("", ""),
}


class Batch:
    """For ``map_batches``: adds the answers of a model to rows.

    ``column`` has a text (a prompt, or the message of a user), tokens, or messages. The columns that are
    added are ``answer``, ``finish_reason``, ``prompt_tokens`` and ``completion_tokens``, or ``embedding``;
    and ``error``, which is null for rows that were answered.

    With the method ``lines`` a row is a line of OpenAI's batch files,
    ``{"custom_id", "method", "url", "body"}``, and
    ``line`` is what its output file has.

    ``load`` has the options of ``Model``; all others are those of a request.
    """

    def __init__(
        self,
        model: str,
        *,
        method: str = "generate",
        column: str = "text",
        load: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
        self.method = method
        self.column = column
        self.options = options
        self.model = Model(model, progress=False, **(load or {}))
        self._reloading = asyncio.Lock()

    async def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        if self.column not in batch:
            raise ValueError(f"column: the rows have no {self.column!r}, they have {', '.join(batch)}")
        rows = [_plain(value) for value in batch[self.column]]
        if self.method == "lines":
            return {**batch, **_columns(await self._lines(rows), ("custom_id", "line", "error"))}
        path, key = METHODS[self.method]
        options, parser = (dict(self.options), None)
        if self.method != "embed":
            options, parser = body_of(options, chat=self.method == "chat", context=self.model.context)
        else:
            options["encoding_format"] = "base64"
        requests = [self._request(path, key, options, row) for row in rows]
        read = _embedding if self.method == "embed" else lambda reply: _answer(reply, parser)
        names = (
            ("embedding",)
            if self.method == "embed"
            else ("answer", "finish_reason", "prompt_tokens", "completion_tokens")
        )
        out = []
        for status, body in await self._results(requests):
            if status >= 400:
                out.append({"error": str(request_error(status, body))})
            else:
                out.append({**read(json.loads(body)), "error": None})
        return {**batch, **_columns(out, (*names, "error"))}

    def _request(self, path: str, key: str, options: dict[str, Any], row: Any) -> tuple[str, bytes] | str:
        """A route and a body, or what is wrong with the row."""
        if self.method == "chat" and isinstance(row, str):
            row = [{"role": "user", "content": row}]
        try:
            return path, encode({**options, key: row})
        except (TypeError, ValueError) as error:
            return f"{self.column}: {error}"

    async def _lines(self, rows: list[Any]) -> list[dict[str, Any]]:
        parsed = [_line(row) for row in rows]
        results = await self._results([request for _, request in parsed])
        out = []
        for (custom_id, _), (status, body) in zip(parsed, results):
            message = str(request_error(status, body)) if status >= 400 else None
            response = {
                "status_code": status,
                "request_id": f"req-{uuid.uuid4().hex}",
                "body": json.loads(body),
            }
            line = {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": custom_id,
                "response": response,
                "error": None,
            }
            out.append(
                {"custom_id": custom_id, "line": json.dumps(line, ensure_ascii=False), "error": message}
            )
        return out

    async def _results(self, requests: list[tuple[str, bytes] | str]) -> list[tuple[int, bytes]]:
        """The status and the body for each request, in their order. An engine that has ended is loaded
        again, once."""
        model = self.model
        results = await self._answers(model, requests)
        if any(status >= 500 for status, _ in results):
            await self._reload(model)
            results = await self._answers(self.model, requests)
        return results

    async def _answers(
        self, model: Model, requests: list[tuple[str, bytes] | str]
    ) -> list[tuple[int, bytes]]:
        results = [(500, _error("no response")) for _ in requests]
        for at, request in enumerate(requests):
            if isinstance(request, str):
                results[at] = (400, _error(request))
        at_once = model.max_num_seqs + AHEAD
        for path in {request[0] for request in requests if not isinstance(request, str)}:
            places = [at for at, request in enumerate(requests) if request[0] == path]
            replies = model._running.requests(path, [requests[at][1] for at in places], at_once)
            while (reply := await ready(replies)) is not None:
                index, status, body = reply
                results[places[index]] = (status, body)
        return results

    async def _reload(self, failed: Model) -> None:
        """Loads the model again, unless another batch has."""
        async with self._reloading:
            if self.model is failed:
                failed.close()
                self.model = await asyncio.to_thread(Model, failed.name, progress=False, **failed._options)


def _error(message: str) -> bytes:
    return encode(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    )


def _line(row: Any) -> tuple[str | None, tuple[str, bytes] | str]:
    """The id of a line of a batch file, and its request or what is wrong with it."""
    try:
        line = json.loads(row) if isinstance(row, (str, bytes)) else row
    except ValueError as error:
        return None, f"the line is no JSON: {error}"
    if not isinstance(line, dict) or not isinstance(line.get("custom_id"), str):
        return None, "the line is no object with a custom_id"
    custom_id = line["custom_id"]
    if line.get("method", "POST") != "POST":
        return custom_id, f"method: expected POST, got {line['method']!r}"
    url, body = line.get("url"), line.get("body")
    if not isinstance(url, str) or not url.startswith("/"):
        return custom_id, f"url: expected a route such as /v1/chat/completions, got {url!r}"
    if not isinstance(body, dict):
        return custom_id, "body: expected an object"
    if body.get("stream"):
        return custom_id, "stream: not supported in a batch"
    return custom_id, (url, encode(body))


def _answer(reply: dict[str, Any], parser: Any) -> dict[str, Any]:
    answer = answers_of(reply, parser, False)[0]
    return {
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": len(answer.token_ids),
    }


def _embedding(reply: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {"embedding": np.frombuffer(base64.b64decode(reply["data"][0]["embedding"]), dtype="<f4")}


def _columns(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in names}


def _plain(value: Any) -> Any:
    """A value of a column: arrays are lists."""
    return value.tolist() if hasattr(value, "tolist") else value
