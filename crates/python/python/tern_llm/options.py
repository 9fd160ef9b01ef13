"""The keyword arguments of a load and of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np

    #: A text, or the ids of its tokens.
    Prompt: TypeAlias = str | Sequence[int] | np.ndarray
    #: A message of a conversation, in the shape of the OpenAI API.
    Message: TypeAlias = Mapping[str, Any]


class LoadOptions(TypedDict, total=False):
    """How a model is loaded; the names are those of the flags of ``tern serve``."""

    #: ``auto`` (the first GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``
    device: str | None
    #: CPU threads; one per core if not set
    threads: int | None
    #: the same text whatever else runs, also on a GPU, where it costs speed
    reproducible: bool | None
    #: inputs of linears in large steps on a GPU: ``f16``, or ``int8`` for 1- and 2-bit weights, less exact
    activations: Literal["f16", "int8"] | None
    #: tokens of a sequence, prompt and answer together; what the model was trained for if not set
    context: int | None
    #: where the weights of experts are: ``auto``, ``device``, ``cpu`` or ``cpu:N``
    experts: str | None
    #: layers on the GPU, counted from the end with the output as one more, while the CPU computes the others;
    #: ``"all"``, or ``"auto"`` for as many as fit
    gpu_layers: int | str | None
    #: where guessed tokens come from (speculative decoding): ``auto``, ``suffix`` or ``off``
    speculate: str | None
    #: guessed tokens per sequence and step
    draft_max: int | None
    #: the type of cached keys and values
    kv: Literal["f16", "int8", "fp8"] | None
    #: pages of the KV cache, of 32 tokens
    kv_pages: int | None
    #: bytes of the KV cache
    kv_bytes: int | None
    #: MiB of snapshots of recurrent layers in the prefix cache
    state_cache: int | None
    #: a folder in which prefixes of prompts are kept, or that folder and the MiB of its files at most
    cache_dir: str | PathLike[str] | tuple[str | PathLike[str], int] | None
    #: sequences that run at once, 32 if not set
    max_num_seqs: int | None
    #: requests that may wait
    max_queue: int | None
    #: tokens of a step
    max_batch_tokens: int | None
    #: target duration of a step during prefill; 0 disables it
    step_millis: int | None
    #: false reads the file into memory instead of mapping it
    mmap: bool | None
    #: locks the file in memory
    mlock: bool | None
    #: how hidden states become an embedding: ``none``, ``mean``, ``cls`` or ``last``
    pooling: str | None
    #: a chat template to use instead of the file's
    chat_template: str | None
    #: adapters: names and paths, or names and (path, scale)
    lora: Mapping[str, str | PathLike[str] | tuple[str | PathLike[str], float]] | None


class Options(TypedDict, total=False):
    """The parameters of a request. Those that are not set, or ``None``, are the model's own or the usual
    ones.

    They are parameters of the server's ``/v1/completions`` and ``/v1/chat/completions`` (docs/api.md), with
    short names for constraints. Others of these routes are passed on, and unknown ones are refused by name.
    """

    #: tokens to generate at most; as many as fit the context if not set
    max_tokens: int | None
    #: tokens before which the text does not end
    min_tokens: int | None
    #: choices per prompt
    n: int | None
    #: the same seed gives the same text
    seed: int | None
    #: what ends the text, and is no part of it
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    #: what must not occur
    bad_words: Sequence[str] | None
    #: token ids and what is added to their logits
    logit_bias: Mapping[int, float] | None
    #: log-probabilities of the tokens, and of this many best ones at each position
    logprobs: int | None
    #: lower goes first
    priority: int | None
    #: the adapter by name, or a list of names and scales: ``[{"name": "poet", "scale": 0.5}]``
    lora: str | Sequence[Mapping[str, Any]] | None

    #: a JSON schema, or a type for pydantic: a model, a dataclass, ``list[int]``; ``Answer.parsed`` is its
    #: value
    json_schema: Any
    #: what the whole text matches
    regex: str | None
    #: strings, one of which is the text
    choice: Sequence[str] | None
    #: a grammar in GBNF, or in Lark as llguidance reads it
    grammar: str | None

    #: functions that the model may call, in the shape of the OpenAI API (chats only, as all that follow)
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    #: whether the model reasons before it answers
    enable_thinking: bool | None
    reasoning_effort: str | None
    #: variables of the chat template
    chat_template_kwargs: Mapping[str, Any] | None
    #: the model continues the last message
    continue_final_message: bool | None

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    top_n_sigma: float | None
    typical_p: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None


#: What reads a text that follows a schema.
Parser = Callable[[str], Any]

#: Short names of constraints, and the members of ``structured_outputs`` that they are.
CONSTRAINTS = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def body_of(options: Mapping[str, Any], *, chat: bool, context: int) -> tuple[dict[str, Any], Parser | None]:
    """The body of a request without its prompt, and what reads the answer."""
    body = {name: value for name, value in options.items() if value is not None}
    body.setdefault("max_tokens", context)
    body["return_token_ids"] = True
    parser: Parser | None = None
    constraint = {}
    for name, member in CONSTRAINTS.items():
        if name in body:
            value = body.pop(name)
            if name == "json_schema":
                value, parser = schema_of(value)
            constraint[member] = list(value) if name == "choice" and not isinstance(value, str) else value
    if constraint:
        body["structured_outputs"] = constraint
    if "logprobs" in body:
        # tokens by id: several may have the same text
        body["return_tokens_as_token_ids"] = True
        if chat:
            body["top_logprobs"] = body["logprobs"]
            body["logprobs"] = True
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
    return body, parser


def schema_of(value: Any) -> tuple[Any, Parser]:
    """The JSON schema of a schema or a type, and what reads a text that follows it."""
    if isinstance(value, (Mapping, str, bool)):
        return value, json.loads
    try:
        from pydantic import TypeAdapter
    except ImportError:
        message = "json_schema: expected a dict or a string; a type needs the package pydantic"
        raise TypeError(message) from None
    adapter = TypeAdapter(value)
    return adapter.json_schema(), adapter.validate_json


def encode(body: Any) -> bytes:
    """A body as JSON; numbers and arrays of numpy are numbers and lists."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"expected what JSON has, got {type(value).__name__}")
