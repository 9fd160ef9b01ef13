"""A loaded model."""

from __future__ import annotations

import base64
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import Engine
from .answer import Ranked, answers_of
from .errors import request_error
from .notebook import progress as progress_of
from .options import LoadOptions, Options, body_of, encode
from .stream import AsyncStream, Stream, cancelled, open_reply, open_reply_async, reading, ready

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from ._native import Replies
    from .options import Message, Prompt

#: Texts of a request for embeddings or scores.
TEXTS = 256
#: Requests that are prepared while others run.
AHEAD = 8


@dataclass
class _Job:
    """Requests that belong together, and what becomes of their replies."""

    start: Callable[[], Replies]
    count: int
    label: str
    #: from the bodies of the replies, in order
    finish: Callable[[list[bytes]], Any]


class Model:
    """A loaded model, which any number of threads and tasks may use.

    ``name`` is a known name (``stories``, ``smollm2``), a GGUF file, a folder of safetensors, or
    ``org/repo[:QUANT]`` of the Hugging Face hub; what is missing is downloaded. ``progress`` says whether
    loading is shown; by default it is in notebooks and on terminals. The other arguments are those of
    ``LoadOptions``.

    Pickling a model stores its name and options: unpickling loads it again.

    >>> model = Model("stories", device="cpu", context=128)
    >>> model
    Model('stories', qwen3, Q1_0, context=128)
    >>> [answer.text for answer in model.generate(["One day", "The dog"], max_tokens=3, temperature=0)]
    [', a little', ' was a very']
    """

    def __init__(
        self, name: str | os.PathLike[str], *, progress: bool | None = None, **options: Unpack[LoadOptions]
    ) -> None:
        self.name = os.fspath(name)
        self._options = {key: value for key, value in options.items() if value is not None}
        _name_environment()
        self._engine: Engine | None = Engine.load(
            self.name, self._options, progress_of(progress), lambda text: warnings.warn(text, stacklevel=4)
        )

    # what it is

    @property
    def context(self) -> int:
        """Tokens that one sequence may have, prompt and answer together."""
        return self._running.context

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at once."""
        return self._running.max_num_seqs

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._running.vocab_size

    @property
    def lora(self) -> list[str]:
        """The names of its adapters."""
        return self._running.lora

    def __repr__(self) -> str:
        if self._engine is None:
            return f"Model({self.name!r}, closed)"
        facts = self._engine.facts
        kind = f", {facts[0]}, {facts[1]}" if facts else ""
        return f"Model({self.name!r}{kind}, context={self._engine.context})"

    # generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        progress: bool | None = False,
        **options: Unpack[Options],
    ) -> Any:
        """Continues a text, or each of a list of texts, which are batched. No chat template is used.

        Returns an ``Answer``, or a list of them in the order of the prompts; with ``n`` a list of ``n`` per
        prompt.

        >>> model = Model("stories")
        >>> model.generate("The cat is", choice=["red", "blue"]).text in ["red", "blue"]
        True
        """
        return self._wait(self._generation(prompts, options), progress)

    async def agenerate(self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Any:
        """As ``generate``, without blocking the event loop."""
        return await self._await(self._generation(prompts, options))

    def chat(
        self,
        messages: str | Sequence[Message] | Sequence[Sequence[Message]],
        *,
        progress: bool | None = False,
        **options: Unpack[Options],
    ) -> Any:
        """Answers a conversation, or each of a list of conversations; a text is one message of the user.

        Returns an ``Answer``, or a list of them, as ``generate``. Its ``message`` continues the conversation.
        """
        return self._wait(self._conversation(messages, options), progress)

    async def achat(
        self, messages: str | Sequence[Message] | Sequence[Sequence[Message]], **options: Unpack[Options]
    ) -> Any:
        """As ``chat``, without blocking the event loop."""
        return await self._await(self._conversation(messages, options))

    def stream(self, prompt: Prompt | Sequence[Message], **options: Unpack[Options]) -> Stream:
        """Starts an answer, whose deltas are read by iterating: of a chat if the prompt is a list of
        messages."""
        path, body, read = self._streamed(prompt, options)
        return Stream(open_reply(self._request("POST", path, body)), read)

    def astream(self, prompt: Prompt | Sequence[Message], **options: Unpack[Options]) -> AsyncStream:
        """As ``stream``, for ``async for``.

        >>> import asyncio
        >>> async def main():
        ...     async for delta in Model("stories").astream("The dog", max_tokens=2, temperature=0):
        ...         print(delta.text, delta.finish_reason)
        >>> asyncio.run(main())
         was None
         a None
         length
        """
        path, body, read = self._streamed(prompt, options)
        return AsyncStream(self._request("POST", path, body), read)

    # texts as numbers

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate: bool | None = None,
        lora: str | None = None,
        progress: bool | None = False,
    ) -> np.ndarray | list[np.ndarray]:
        """The embeddings of texts: a vector for one, rows for a list, in 32-bit floats and of length one.

        With pooling ``none``, a text has a row per token, and a list of texts a list of arrays.

        >>> Model("stories").embed(["a small bird", "a large ship"]).shape
        (2, 512)
        """
        return self._wait(self._embedding(texts, dimensions, truncate, lora), progress)

    async def aembed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate: bool | None = None,
        lora: str | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """As ``embed``, without blocking the event loop."""
        return await self._await(self._embedding(texts, dimensions, truncate, lora))

    def score(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        raw_scores: bool | None = None,
        progress: bool | None = False,
    ) -> np.ndarray:
        """How relevant each document is for a query, from 0 to 1, in the order of the documents (rerankers
        only)."""
        return self._wait(self._scoring(query, documents, instruction, raw_scores), progress)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        progress: bool | None = False,
    ) -> list[Ranked]:
        """The documents by their relevance for a query, the best first (rerankers only)."""
        return self._wait(self._ranking(query, documents, top_n, instruction), progress)

    async def arerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
    ) -> list[Ranked]:
        """As ``rerank``, without blocking the event loop."""
        return await self._await(self._ranking(query, documents, top_n, instruction))

    def next_logprobs(self, prompts: Prompt | Sequence[Prompt]) -> np.ndarray:
        """The log-probability of every token of the vocabulary after a prompt: a row of 32-bit floats by
        token id, or one per prompt. They are the model's logits but for a constant per row.

        >>> row = Model("stories").next_logprobs("Once upon a time")
        >>> row.shape, Model("stories").detokenize([row.argmax()])
        ((4096,), ',')
        """
        import numpy as np

        many, single = _prompts(prompts)
        tokens = [self.tokenize(prompt) if isinstance(prompt, str) else prompt for prompt in many]

        def finish(bodies: list[bytes]) -> np.ndarray:
            rows = np.array([np.frombuffer(body, dtype=np.float32) for body in bodies], dtype=np.float32)
            return rows[0] if single else rows.reshape(len(tokens), self.vocab_size)

        start = lambda: self._running.next_logprobs(tokens, self._at_once())  # noqa: E731
        return self._wait(_Job(start, len(tokens), "next_logprobs", finish), False)

    def tokenize(self, text: str | Sequence[Message], *, add_special_tokens: bool | None = None) -> list[int]:
        """The tokens of a text with the model's special ones, or of a conversation as the model reads it.

        >>> model = Model("stories")
        >>> model.detokenize(model.tokenize("Once upon a time"))
        '<|endoftext|>Once upon a time'
        """
        body = {"prompt": text} if isinstance(text, str) else {"messages": text}
        if add_special_tokens is not None:
            body["add_special_tokens"] = add_special_tokens
        return self.openai("/tokenize", body)["tokens"]

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return self.openai("/detokenize", {"tokens": tokens})["prompt"]

    # whole bodies

    def openai(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Calls a route of the server without a network: a body in, the body of its response out.

        With ``stream`` in the body the result is an iterator of events. An error response raises
        ``RequestError`` with its status and body. All routes of docs/api.md are there, also those of
        Anthropic, Ollama and Cohere.

        >>> body = {"prompt": "Once upon a time", "max_tokens": 1, "temperature": 0}
        >>> reply = Model("stories").openai("/v1/completions", body)
        >>> reply["choices"][0]["text"], reply["usage"]["prompt_tokens"]
        (',', 5)
        """
        return open_reply(self._request(method, path, body, headers))

    async def aopenai(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """As ``openai``, without blocking the event loop; events are read by ``async for``."""
        return await open_reply_async(self._request(method, path, body, headers))

    # its life

    def close(self) -> None:
        """Ends all requests and frees the model's memory. Dropping the last reference does so too."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _load, (self.name, self._options)

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the model is closed")
        return self._engine

    def _at_once(self) -> int:
        return self.max_num_seqs + AHEAD

    def _request(
        self, method: str | None, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> Any:
        given = [("content-type", "application/json")] if body is not None else []
        given += (headers or {}).items()
        text = b"" if body is None else body if isinstance(body, bytes) else encode(body)
        return self._running.request(method or ("GET" if body is None else "POST"), path, given, text)

    def _wait(self, job: _Job, progress: bool | None) -> Any:
        show, done = progress_of(progress), 0
        replies, bodies = job.start(), [b""] * job.count
        try:
            while (reply := replies.wait()) is not None:
                _keep(bodies, reply)
                done += 1
                if show is not None:
                    show(job.label, done, job.count)
        finally:
            replies.cancel()
            if show is not None:
                show("", 0, 0)
        if done < job.count:
            raise cancelled()
        return job.finish(bodies)

    async def _await(self, job: _Job) -> Any:
        replies, bodies, done = job.start(), [b""] * job.count, 0
        try:
            while (reply := await ready(replies)) is not None:
                _keep(bodies, reply)
                done += 1
        finally:
            replies.cancel()
        if done < job.count:
            raise cancelled()
        return job.finish(bodies)

    def _requests(
        self, path: str, bodies: list[bytes], at_once: int, finish: Callable[[list[bytes]], Any]
    ) -> _Job:
        return _Job(
            lambda: self._running.requests(path, bodies, at_once), len(bodies), path.split("/")[-1], finish
        )

    def _generation(self, prompts: Any, options: Mapping[str, Any]) -> _Job:
        many, single = _prompts(prompts)
        return self._answers("/v1/completions", "prompt", many, single, options)

    def _conversation(self, messages: Any, options: Mapping[str, Any]) -> _Job:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        messages = list(messages)
        single = not messages or isinstance(messages[0], Mapping)
        many = [messages] if single else [list(conversation) for conversation in messages]
        return self._answers("/v1/chat/completions", "messages", many, single, options)

    def _answers(
        self, path: str, key: str, many: list[Any], single: bool, options: Mapping[str, Any]
    ) -> _Job:
        body, parser = body_of(options, chat=key == "messages", context=self.context)
        if body.get("stream"):
            raise TypeError("stream: call Model.stream or Model.astream")
        bodies = [encode({**body, key: one}) for one in many]
        logprobs, several = "logprobs" in body, "n" in body

        def finish(replies: list[bytes]) -> Any:
            answers: list[Any] = [answers_of(json.loads(reply), parser, logprobs) for reply in replies]
            answers = [choices if several else choices[0] for choices in answers]
            return answers[0] if single else answers

        return self._requests(path, bodies, self._at_once(), finish)

    def _streamed(self, prompt: Any, options: Mapping[str, Any]) -> Any:
        chat = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
        body, parser = body_of(options, chat=chat, context=self.context)
        body["messages" if chat else "prompt"] = prompt
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        return path, body, reading(parser, "logprobs" in body)

    def _embedding(self, texts: Any, dimensions: int | None, truncate: bool | None, lora: str | None) -> _Job:
        import numpy as np

        many, single = _prompts(texts)
        per_token = self._running.pooling == "none"
        body: dict[str, Any] = {"dimensions": dimensions, "truncate": truncate, "lora": lora}
        if not per_token:
            body["encoding_format"] = "base64"
        body = {name: value for name, value in body.items() if value is not None}
        bodies = [encode({**body, "input": many[at : at + TEXTS]}) for at in range(0, len(many), TEXTS)]

        def finish(replies: list[bytes]) -> Any:
            rows: list[np.ndarray] = []
            for reply in map(json.loads, replies):
                if per_token:
                    rows += [np.array(text["embedding"], dtype=np.float32) for text in reply]
                else:
                    numbers = [base64.b64decode(text["embedding"]) for text in reply["data"]]
                    rows += [
                        np.frombuffer(bytearray(text), dtype="<f4").astype(np.float32, copy=False)
                        for text in numbers
                    ]
            if single:
                return rows[0]
            return rows if per_token else np.stack(rows) if rows else np.zeros((0, 0), dtype=np.float32)

        return self._requests("/embedding" if per_token else "/v1/embeddings", bodies, 2, finish)

    def _scoring(
        self, query: str, documents: Sequence[str], instruction: str | None, raw: bool | None
    ) -> _Job:
        import numpy as np

        documents = list(documents)
        body: dict[str, Any] = {"query": query, "instruction": instruction, "raw_scores": raw}
        body = {name: value for name, value in body.items() if value is not None}
        starts = range(0, len(documents), TEXTS)
        bodies = [encode({**body, "documents": documents[at : at + TEXTS]}) for at in starts]

        def finish(replies: list[bytes]) -> np.ndarray:
            scores = np.zeros(len(documents), dtype=np.float32)
            for start, reply in zip(starts, replies):
                for result in json.loads(reply)["results"]:
                    scores[start + result["index"]] = result["relevance_score"]
            return scores

        return self._requests("/v1/rerank", bodies, 2, finish)

    def _ranking(
        self, query: str, documents: Sequence[str], top_n: int | None, instruction: str | None
    ) -> _Job:
        documents = list(documents)
        job = self._scoring(query, documents, instruction, None)
        scores_of = job.finish

        def finish(replies: list[bytes]) -> list[Ranked]:
            scores = scores_of(replies)
            best = sorted(range(len(documents)), key=lambda at: -scores[at])[:top_n]
            return [Ranked(at, float(scores[at]), documents[at]) for at in best]

        job.finish = finish
        return job


def _load(name: str, options: dict[str, Any]) -> Model:
    """What unpickling calls."""
    return Model(name, **options)


def _keep(bodies: list[bytes], reply: tuple[int, int, bytes]) -> None:
    """Keeps the body of a reply in its place; an error is raised."""
    index, status, body = reply
    if status >= 400:
        raise request_error(status, body)
    bodies[index] = body


def _prompts(given: Any) -> tuple[list[Any], bool]:
    """The prompts, and whether there is one that is no list of prompts."""
    if isinstance(given, str):
        return [given], True
    many = given.tolist() if hasattr(given, "tolist") else list(given)
    if many and not isinstance(many[0], str) and not hasattr(many[0], "__len__"):
        return [many], True  # the tokens of one prompt
    return [one if isinstance(one, str) else list(one) for one in many], False


def _name_environment() -> None:
    """Names the virtual environment of this Python, in which NVRTC may be installed, if it was not
    activated."""
    if sys.prefix != sys.base_prefix:
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
