"""Answers, whole and in pieces."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from .options import Parser


@dataclass
class ToolCall:
    """A function that the model called."""

    #: what the message with the result refers to
    id: str
    name: str
    #: JSON as the model wrote it
    arguments: str

    def message(self, result: Any) -> dict[str, Any]:
        """The message with the result of the call, for the next turn."""
        content = result if isinstance(result, str) else json.dumps(result)
        return {"role": "tool", "tool_call_id": self.id, "content": content}


@dataclass
class Delta:
    """What one or more tokens add to an answer."""

    #: more of the content
    text: str = ""
    #: more of the reasoning before it
    reasoning: str = ""
    #: more of the calls, in the shape of the OpenAI API
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    #: of each token, if requested
    logprobs: list[float] = field(default_factory=list)
    #: of the best tokens at the place of each token, by token id
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    #: why the answer ends here: ``stop``, ``length`` or ``tool_calls``
    finish_reason: str | None = None
    #: which choice it belongs to
    index: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass
class Answer:
    """A whole answer.

    >>> from tern_llm import Model
    >>> answer = Model("stories").generate("Once upon a time", max_tokens=4, temperature=0, logprobs=1)
    >>> answer.text, answer.finish_reason, answer.prompt_tokens
    (', there was a', 'length', 5)
    >>> answer.logprobs.dtype, answer.token_ids.shape
    (dtype('float32'), (4,))
    """

    #: its content
    text: str
    #: the reasoning before it, if the model marks it
    reasoning: str
    #: the functions that the model called
    tool_calls: list[ToolCall]
    #: why it ended: ``stop``, ``length`` or ``tool_calls``
    finish_reason: str | None
    #: its tokens
    token_ids: np.ndarray
    #: the log-probability of each token, if requested
    logprobs: np.ndarray | None
    #: those of the best tokens at each place, by token id
    top_logprobs: list[dict[int, float]] | None
    #: tokens of the prompt, and those of them that were in the prefix cache
    prompt_tokens: int
    cached_tokens: int
    _parser: Parser | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, for the next turn."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        else:
            message["content"] = self.text
        return message

    @property
    def parsed(self) -> Any:
        """The value of a text with ``json_schema``: as JSON, or of the type that was the schema."""
        if self._parser is None:
            raise ValueError("parsed: the request has no json_schema")
        if self.finish_reason == "length":
            raise ValueError(
                f"parsed: the text was cut off after {len(self.token_ids)} tokens: {self.text!r}"
            )
        return self._parser(self.text)

    def _repr_html_(self) -> str:
        return as_html(self.text, self.reasoning)


class Ranked(NamedTuple):
    """A document and how relevant it is."""

    #: its place in the list that was ranked
    index: int
    score: float
    document: str


def as_html(text: str, reasoning: str) -> str:
    """A text for a notebook; what the model wrote is never markup."""
    thoughts = ""
    if reasoning:
        opened = "" if text else " open"
        thoughts = f"<details{opened}><summary>reasoning</summary>{_paragraph(reasoning)}</details>"
    return f'<div class="tern-answer">{thoughts}{_paragraph(text)}</div>'


def _paragraph(text: str) -> str:
    return f'<div style="white-space: pre-wrap">{html.escape(text)}</div>'


def delta_of(choice: dict[str, Any]) -> Delta:
    """The delta of a choice of a chunk, or of a whole reply, of a chat or of a completion."""
    message = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
    delta = Delta(
        text=message.get("content") or "",
        reasoning=message.get("reasoning_content") or "",
        tool_calls=message.get("tool_calls") or [],
        token_ids=choice.get("token_ids") or [],
        finish_reason=choice.get("finish_reason"),
        index=choice["index"],
    )
    logprobs = choice.get("logprobs") or {}
    for token in logprobs.get("content") or []:  # of a chat
        delta.logprobs.append(token["logprob"])
        delta.top_logprobs.append({_id(best["token"]): best["logprob"] for best in token["top_logprobs"]})
    for own, top in zip(logprobs.get("token_logprobs") or [], logprobs.get("top_logprobs") or []):
        delta.logprobs.append(float("nan") if own is None else own)
        delta.top_logprobs.append({_id(token): logprob for token, logprob in (top or {}).items()})
    return delta


def _id(token: str) -> int:
    """The number in ``token_id:8055``."""
    return int(token.rpartition(":")[2])


class Collected:
    """The deltas of one choice so far."""

    def __init__(self, parser: Parser | None, logprobs: bool) -> None:
        self.whole = Delta()
        self._calls: list[ToolCall] = []
        self._parser = parser
        self._logprobs = logprobs

    def add(self, delta: Delta) -> None:
        """Appends what a delta adds."""
        whole = self.whole
        whole.text += delta.text
        whole.reasoning += delta.reasoning
        whole.token_ids += delta.token_ids
        whole.logprobs += delta.logprobs
        whole.top_logprobs += delta.top_logprobs
        whole.finish_reason = delta.finish_reason or whole.finish_reason
        for place, call in enumerate(delta.tool_calls):
            at = call.get("index", place)
            function = call.get("function", {})
            while len(self._calls) <= at:
                self._calls.append(ToolCall("", "", ""))
            known = self._calls[at]
            known.id = call.get("id") or known.id
            known.name = function.get("name") or known.name
            known.arguments += function.get("arguments") or ""

    def answer(self, usage: dict[str, Any]) -> Answer:
        """The answer, with the tokens that the reply counts."""
        import numpy as np

        whole = self.whole
        return Answer(
            text=whole.text,
            reasoning=whole.reasoning,
            tool_calls=self._calls,
            finish_reason=whole.finish_reason,
            token_ids=np.array(whole.token_ids, dtype=np.int32),
            logprobs=np.array(whole.logprobs, dtype=np.float32) if self._logprobs else None,
            top_logprobs=whole.top_logprobs if self._logprobs else None,
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            _parser=self._parser,
        )


def answers_of(reply: dict[str, Any], parser: Parser | None, logprobs: bool) -> list[Answer]:
    """The choices of a whole reply."""
    answers = []
    for choice in reply["choices"]:
        collected = Collected(parser, logprobs)
        collected.add(delta_of(choice))
        answers.append(collected.answer(reply.get("usage") or {}))
    return answers
