"""The official clients of four APIs, and programs built on them, against a running server, unchanged.

    python3 scripts/clients_test.py --url http://127.0.0.1:8080 --api-key KEY [--encoder URL] [--node DIR] [--only NAME] [--all]

Every function named `test_...` is one check, named after the PyPI package it needs: openai, anthropic,
ollama, litellm, langchain_openai, agents (openai-agents), lm_eval, cohere, langchain_cohere. The AI SDK needs
`node` and DIR with the npm packages `ai`, `@ai-sdk/openai` and `@ai-sdk/anthropic`. Checks of embeddings and
reranking need the URL of a server with a model for embeddings, which scores pairs by their cosine. What is
missing is skipped with a message, or fails the run with --all. The model behind the server must have a chat
template; what it says does not matter, only that each client understands it. Events and replies are validated
with the clients' own typed models, and must not have fields that the models do not know.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import typing
import urllib.error
import urllib.request
from pathlib import Path

import checks
from checks import refused, want

URL = KEY = MODEL = NODE = ENCODER = ""
QUESTION = "What is the capital of France?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}


def send(path, body=None, method=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **headers}
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method), timeout=120)


def fetch(path, body=None, method=None):
    return json.load(send(path, body, method))


def events(path, body):
    """The data of each server-sent event, whose name must be its type if it has a name."""
    name = None
    for line in send(path, body):
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: ") and line != "data: [DONE]":
            data = json.loads(line[6:])
            want(name is None or data["type"] == name, name, data)
            yield data
            name = None
        else:
            want(line == "" or line.startswith(":") or line == "data: [DONE]", repr(line))


def exact(model, data, path=""):
    """No field of `data` is unknown to the typed model that was made of it."""
    from pydantic import BaseModel

    if isinstance(model, BaseModel):
        extra = sorted(set(model.model_extra or {}) - {"name"})  # Ollama's lists have it beside `model`
        want(not extra, f"{path}{type(model).__name__} has unknown fields {extra}: {data}")
        for name, field in type(model).model_fields.items():
            exact(getattr(model, name), data, f"{path}{type(model).__name__}.")
    elif isinstance(model, (list, tuple)):
        for item in model:
            exact(item, data, path)


def typed(kind, data):
    from pydantic import TypeAdapter

    model = TypeAdapter(kind).validate_python(data)
    exact(model, data)
    return model


# -- the Responses API, with the package openai


def responses(**changes):
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
    return client.responses, {"model": MODEL, "input": QUESTION, "max_output_tokens": 16, "temperature": 0, **changes}


def create(**changes):
    client, params = responses(**changes)
    return client.create(**params)


FUNCTION = {"type": "function", "name": "get_weather", "description": "The weather", "parameters": SCHEMA, "strict": True}


def test_openai_responses():
    answer = create()
    want(answer.status == "completed" and "Paris" in answer.output_text, answer)
    want(answer.usage.input_tokens > 0 and answer.usage.input_tokens_details.cached_tokens >= 0, answer.usage)
    cut = create(max_output_tokens=2)
    want(cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut)
    want(create(max_output_tokens=2).usage.input_tokens_details.cached_tokens >= 32, "the prefix cache is reported")
    parts = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    want(create(input=parts).output_text == answer.output_text, "input in parts")
    want("Paris" in create(input=[{"role": "user", "content": QUESTION}], instructions="Be brief.").output_text)


def test_openai_responses_events():
    from openai.types.responses import Response, ResponseStreamEvent

    tools = {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 100}
    custom = {"tools": [{"type": "custom", "name": "patch", "description": "A text"}], "tool_choice": "required"}
    shape = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    cases = {
        "text": {},
        "cut": {"max_output_tokens": 2},
        "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "tools": tools,
        "custom": {**custom, "max_output_tokens": 60},
        "schema": {"text": {"format": shape}, "max_output_tokens": 100},
    }
    for name, more in cases.items():
        body = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 16, **more}
        seen = [typed(ResponseStreamEvent, event) for event in events("/v1/responses", {**body, "stream": True})]
        want([event.sequence_number for event in seen] == list(range(len(seen))), name, "sequence numbers")
        kinds = [event.type for event in seen]
        want(kinds[:2] == ["response.created", "response.in_progress"], name, kinds)
        want(kinds[-1] in ("response.completed", "response.incomplete"), name, kinds)
        last = seen[-1].response
        whole = typed(Response, fetch("/v1/responses", body))
        clean = lambda r: [item.model_dump(exclude={"id", "call_id"}) for item in r.output]
        want(clean(last) == clean(whole), name, clean(last), clean(whole))
        if name == "tools":
            call = whole.output[0]
            want(json.loads(call.arguments)["unit"] in ("C", "F") and call.name == "get_weather", call)
            deltas = "".join(e.delta for e in seen if e.type == "response.function_call_arguments.delta")
            want(deltas == call.arguments, deltas)
        if name == "custom":
            want(last.output[0].type == "custom_tool_call" and isinstance(last.output[0].input, str), last.output)
        if name == "schema" and last.status == "completed":
            want(json.loads(whole.output_text).keys() == {"city"}, whole.output_text)
        if name == "logprobs":
            tokens = whole.output[0].content[0].logprobs
            want(tokens and len(tokens[0].top_logprobs) == 2, tokens)
            want([e.logprobs for e in seen if e.type == "response.output_text.delta" and e.delta][0], "streamed logprobs")


def test_openai_responses_stream_helper():
    client, params = responses()
    with client.stream(**params) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    want("response.output_text.delta" in kinds and "Paris" in final.output_text, kinds, final)


def test_openai_responses_conversation():
    import openai

    first = create(input="My name is Ada. Remember it.")
    second = create(input="What is my name?", previous_response_id=first.id)
    want(second.previous_response_id == first.id, second)
    want(second.usage.input_tokens > first.usage.total_tokens, first.usage, second.usage)
    client, _ = responses()
    want(client.retrieve(first.id).output_text == first.output_text, "a stored response")
    items = client.input_items.list(second.id).data
    want(len(items) == 3 and items[-1].content[0].text.startswith("My name"), items)
    # what AI SDKs send for items of stored responses
    reference = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "Why?"}]
    want(create(input=reference).output is not None)
    client.delete(first.id)
    refused(openai.NotFoundError, lambda: client.retrieve(first.id), first.id)
    refused(openai.NotFoundError, lambda: create(previous_response_id=first.id), "previous_response_id")
    lost = create(store=False)
    refused(openai.NotFoundError, lambda: client.retrieve(lost.id))


def test_openai_responses_tools_and_reasoning_items():
    call = create(tools=[FUNCTION], tool_choice={"type": "function", "name": "get_weather"}, max_output_tokens=100).output[0]
    back = [
        {"role": "user", "content": "What is the weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "SG0u"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "22 C"},
    ]
    want(create(input=back, tools=[FUNCTION], include=["reasoning.encrypted_content"]).output, "an answer after a result")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    other = {**FUNCTION, "name": "get_time"}
    answer = create(tools=[other, FUNCTION, {"type": "web_search"}], tool_choice=allowed, max_output_tokens=100)
    want({item.name for item in answer.output} == {"get_weather"}, answer.output)


def test_openai_responses_refusals():
    import openai

    bad = lambda *words, **p: refused(openai.BadRequestError, lambda: create(**p), *words)
    bad("frobnicate", extra_body={"frobnicate": 1})
    bad("background", background=True)
    bad("max_output_tokens", max_output_tokens=0)
    bad("image_url", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}])
    long = [{"role": "user", "content": "word " * 9000}, {"role": "user", "content": QUESTION}]
    bad("context", input=long)
    short = create(input=long, truncation="auto")
    want(short.status and short.usage.input_tokens < 100, short.usage)


# -- the Messages API, with the package anthropic


def anthropic_client(**changes):
    import anthropic

    return anthropic.Anthropic(**{"base_url": URL, "api_key": KEY, "max_retries": 0, "timeout": 120, **changes})


def message(**changes):
    params = {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": QUESTION}]}
    # newer versions of the package have no parameter temperature
    body = {"temperature": 0, **changes.pop("extra_body", {})}
    return anthropic_client().messages.create(**{**params, **changes}, extra_body=body)


WEATHER = {"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}


def test_anthropic_messages():
    answer = message()
    want(answer.stop_reason == "end_turn" and "Paris" in answer.content[0].text, answer)
    want(message(max_tokens=2).stop_reason == "max_tokens")
    stopped = message(stop_sequences=["France"])
    want(stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "France", stopped)
    want("France" not in stopped.content[0].text, stopped)
    again = message().usage
    want(again.cache_read_input_tokens >= 32 and again.input_tokens > 0, again)
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]}]
    want(message(system=system, messages=blocks, metadata={"user_id": "me"}).content)
    want(message(thinking={"type": "disabled"}).content)
    count = anthropic_client().messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
    want(count.input_tokens == again.input_tokens + again.cache_read_input_tokens, count, again)


def test_anthropic_events():
    from anthropic.types import Message, RawMessageStreamEvent

    forced = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 100}
    for name, more in {"text": {}, "cut": {"max_tokens": 2}, "tools": forced}.items():
        body = {"model": MODEL, "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}], **more}
        raw = list(events("/v1/messages", {**body, "stream": True}))
        seen = [typed(RawMessageStreamEvent, event) for event in raw if event["type"] != "ping"]
        kinds = [event.type for event in seen]
        want(kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], name, kinds)
        whole = typed(Message, fetch("/v1/messages", body))
        want(seen[-2].delta.stop_reason == whole.stop_reason, name, seen[-2], whole)
        temperature = {"temperature": body.pop("temperature")}
        with anthropic_client().messages.stream(**body, extra_body=temperature) as stream:
            final = stream.get_final_message()
        clean = lambda m: [block.model_dump(exclude={"id"}, exclude_none=True) for block in m.content]
        strip = lambda blocks: [{k: v for k, v in b.items() if k not in ("parsed_output",)} for b in blocks]
        want(strip(clean(final)) == strip(clean(whole)), name, clean(final), clean(whole))
        if name == "tools":
            call = whole.content[0]
            want(whole.stop_reason == "tool_use" and call.name == "get_weather" and call.input["unit"] in ("C", "F"), whole)


def test_anthropic_tools():
    call = message(tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=100).content[0]
    back = [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, call.model_dump(exclude_none=True)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "22 C"}]},
    ]
    want(message(messages=back, tools=[WEATHER, {"type": "web_search_20250305", "name": "web_search"}]).content)


def test_anthropic_refusals():
    import anthropic

    bad = lambda *words, **p: refused(anthropic.BadRequestError, lambda: message(**p), *words)
    error = bad("frobnicate", extra_body={"frobnicate": 1})
    want(error.body["type"] == "error" and error.body["error"]["type"] == "invalid_request_error", error.body)
    bad("temperature", extra_body={"temperature": -1})
    bad("image", messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "data:,"}}]}])
    refused(anthropic.NotFoundError, lambda: message(model="nobody"), "not_found_error")
    if KEY != "none":
        wrong = anthropic_client(api_key="wrong")
        call = lambda: wrong.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "a"}])
        refused(anthropic.AuthenticationError, call, "authentication_error")


# -- Ollama's API, with the package ollama


def ollama_client():
    import ollama

    return ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)


ASK = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0, "num_predict": 16, "num_ctx": 2048, "seed": 1}


def lines(path, body):
    return [json.loads(line) for line in send(path, body)]


def test_ollama_chat_and_generate():
    import ollama

    client = ollama_client()
    answer = client.chat(MODEL, messages=ASK, options=GREEDY, keep_alive="5m")
    want("Paris" in answer.message.content and answer.done_reason == "stop" and answer.eval_count > 0, answer)
    text = "".join(piece.message.content for piece in client.chat(MODEL, messages=ASK, options=GREEDY, stream=True))
    want(text == answer.message.content, repr(text))
    answer = client.generate(f"{MODEL}:latest", QUESTION, options={**GREEDY, "num_predict": 2})
    want(answer.done_reason == "length" and answer.response, answer)
    text = "".join(piece.response for piece in client.generate(MODEL, QUESTION, options=GREEDY, stream=True))
    want("Paris" in text, repr(text))
    raw = client.generate(MODEL, "Once upon a time", raw=True, options={**GREEDY, "stop": ["."]})
    want(raw.response and "." not in raw.response, raw)
    want(client.generate(MODEL).done_reason == "load", "a request without a prompt")
    shaped = client.chat(MODEL, messages=ASK, format=CITY, options={**GREEDY, "num_predict": 60})
    want(shaped.done_reason == "length" or json.loads(shaped.message.content).keys() == {"city"}, shaped)
    want(client.chat(MODEL, messages=ASK, format="json", think=False, options=GREEDY).message)
    logprobs = client.chat(MODEL, messages=ASK, logprobs=True, top_logprobs=2, options=GREEDY).logprobs
    want(logprobs and len(logprobs[0].top_logprobs) == 2, logprobs)
    # every option that the client knows
    special = {"num_predict": 2, "stop": ["x"], "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "repeat_last_n": 64}
    value = lambda name, kind: special.get(name, True if "bool" in kind else 1 if "int" in kind else 1.0)
    options = {name: value(name, str(field.annotation)) for name, field in ollama.Options.model_fields.items()}
    want(client.chat(MODEL, messages=ASK, options=options).done, options)
    refused(ollama.ResponseError, lambda: client.chat("nobody", messages=ASK), "nobody")
    refused(ollama.ResponseError, lambda: client.chat(MODEL, messages=ASK, options={"temperature": -1}), "temperature")


def test_ollama_tools():
    weather = {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": SCHEMA}}
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}}
    back = ASK + [
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "22 C"},
    ]
    want(ollama_client().chat(MODEL, messages=back, tools=[weather], options=GREEDY).message, "an answer after a result")
    forced = {"model": MODEL, "messages": ASK, "tools": [weather], "tool_choice": "required", "stream": False}
    forced = {**forced, "parallel_tool_calls": False, "options": {**GREEDY, "num_predict": 100}}
    calls = fetch("/api/chat", forced)["message"]["tool_calls"]
    want(calls[0]["function"]["arguments"]["unit"] in ("C", "F"), calls)


def test_ollama_lines():
    from ollama import ChatResponse, EmbedResponse, GenerateResponse, ListResponse, ProcessResponse, ShowResponse

    chat = {"model": MODEL, "messages": ASK, "options": GREEDY, "logprobs": True}
    generate = {"model": MODEL, "prompt": QUESTION, "options": GREEDY}
    for path, body, kind in [("/api/chat", chat, ChatResponse), ("/api/generate", generate, GenerateResponse)]:
        seen = [typed(kind, line) for line in lines(path, body)]
        want([line.done for line in seen] == [False] * (len(seen) - 1) + [True], path, seen)
        want(seen[-1].total_duration > 0 and seen[-1].prompt_eval_count > 0, seen[-1])
    typed(EmbedResponse, fetch("/api/embed", {"model": MODEL, "input": ["a", "b"]}))
    typed(ShowResponse, fetch("/api/show", {"model": MODEL}))
    want(typed(ListResponse, fetch("/api/tags")).models, "tags")
    want(typed(ProcessResponse, fetch("/api/ps")).models[0].context_length > 0, "ps")


def test_ollama_models_and_embeddings():
    client = ollama_client()
    want(client.list().models[0].model == MODEL, client.list())
    want(client.ps().models[0].model == MODEL, client.ps())
    shown = client.show(MODEL)
    want("completion" in shown.capabilities and shown.details.family and shown.modelinfo, shown)
    embedded = client.embed(MODEL, ["a small bird", "a large ship"])
    want(len(embedded.embeddings) == 2 and embedded.prompt_eval_count > 0, embedded)
    want(len(client.embeddings(MODEL, "a small bird").embedding) == len(embedded.embeddings[0]))
    want("version" in fetch("/api/version"))


# -- every parameter that the official clients have is known: used, ignored or refused with a reason


def known(path, body, *kinds):
    """The names of the fields of `kinds`, typed dicts or models, are no unknown parameters."""
    names = set()
    for kind in kinds:
        fields = getattr(kind, "model_fields", None)
        names |= set(fields) if fields is not None else set(typing.get_type_hints(kind))
    for name in sorted(names - set(body)):
        try:
            send(path, {**body, name: [[]]}).read()  # of no parameter's type
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            want("unknown parameter" not in text, path, name, text)


def test_openai_parameters():
    from openai.types import completion_create_params, embedding_create_params
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    ask = [{"role": "user", "content": "a"}]
    known("/v1/chat/completions", {"messages": ask, "max_tokens": 1}, chat.CompletionCreateParamsBase)
    known("/v1/completions", {"prompt": "a", "max_tokens": 1}, completion_create_params.CompletionCreateParamsBase)
    known("/v1/responses", {"input": "a", "max_output_tokens": 1}, responses.ResponseCreateParamsBase)
    known("/v1/embeddings", {"input": "a"}, embedding_create_params.EmbeddingCreateParams)


def test_anthropic_parameters():
    from anthropic.types import message_count_tokens_params, message_create_params

    body = {"messages": [{"role": "user", "content": "a"}]}
    known("/v1/messages", {**body, "max_tokens": 1}, message_create_params.MessageCreateParamsBase)
    known("/v1/messages/count_tokens", body, message_count_tokens_params.MessageCountTokensParams)


def test_ollama_parameters():
    from ollama import _types as types

    options = {"num_predict": 1}
    known("/api/chat", {"model": MODEL, "messages": ASK, "options": options}, types.ChatRequest)
    known("/api/generate", {"model": MODEL, "prompt": "a", "options": options}, types.GenerateRequest)
    known("/api/embed", {"model": MODEL, "input": "a"}, types.EmbedRequest)


# -- Cohere's API, with the package cohere, on a model for embeddings

DOCUMENTS = ["Ships float on water.", "The wings of a bird lift it into the air.", "Paris is the capital of France."]


def encoder_model():
    request = urllib.request.Request(f"{ENCODER}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    return json.load(urllib.request.urlopen(request, timeout=60))["data"][0]["id"]


def test_cohere_embed():
    import cohere

    model = encoder_model()
    client = cohere.ClientV2(KEY, base_url=ENCODER, timeout=60)
    embed = lambda **more: client.embed(**{"model": model, "texts": DOCUMENTS, "input_type": "search_document", **more})
    both = embed(embedding_types=["float", "base64"])
    exact(both, both)
    want(len(both.embeddings.float_) == len(both.embeddings.base64) == 3 and both.texts == DOCUMENTS, both)
    want(both.meta.billed_units.input_tokens > 10 and both.response_type == "embeddings_by_type", both.meta)
    want(embed(embedding_types=["float"], output_dimension=64).embeddings.float_[0][:2] != [], "fewer dimensions")
    first = cohere.Client(KEY, base_url=ENCODER, timeout=60)
    plain = first.embed(model=model, texts=DOCUMENTS, input_type="search_query")
    exact(plain, plain)
    want(plain.response_type == "embeddings_floats" and plain.embeddings == both.embeddings.float_, plain.meta)
    refused(cohere.BadRequestError, lambda: embed(embedding_types=["int8"]), "embedding_types")
    refused(cohere.NotFoundError, lambda: embed(model="nobody"), "nobody")


def test_cohere_rerank():
    import cohere

    model = encoder_model()
    query = {"model": model, "query": "How do birds fly?", "documents": DOCUMENTS}
    client = cohere.ClientV2(KEY, base_url=ENCODER, timeout=60)
    results = client.rerank(**query, top_n=2).results
    want([result.index for result in results][0] == 1 and len(results) == 2, results)
    want(results[0].relevance_score > results[1].relevance_score, results)
    short = client.rerank(**query, max_tokens_per_doc=1).results
    words = client.rerank(**{**query, "documents": ["Ships", "The", "Paris"]}).results
    score = lambda results: {result.index: round(result.relevance_score, 4) for result in results}
    want(score(short) == score(words), short, words)
    first = cohere.Client(KEY, base_url=ENCODER, timeout=60).rerank(**query, return_documents=True)
    want(first.results[0].document.text == DOCUMENTS[1], first)
    refused(cohere.BadRequestError, lambda: client.rerank(**{**query, "query": ""}), "query")


# -- programs on top of them


def test_langchain_cohere():
    from langchain_cohere import CohereEmbeddings, CohereRerank
    from langchain_core.documents import Document

    common = {"model": encoder_model(), "cohere_api_key": KEY, "base_url": ENCODER}
    embeddings = CohereEmbeddings(**common)
    want(len(embeddings.embed_documents(DOCUMENTS)) == 3 and len(embeddings.embed_query("a")) > 100)
    ranked = CohereRerank(**common, top_n=1).compress_documents([Document(text) for text in DOCUMENTS], "How do birds fly?")
    want([document.page_content for document in ranked] == DOCUMENTS[1:2], ranked)


def test_langchain_openai_embeddings():
    from langchain_openai import OpenAIEmbeddings

    # otherwise it sends the tokens of OpenAI's own vocabulary
    common = {"model": encoder_model(), "api_key": KEY, "base_url": f"{ENCODER}/v1", "check_embedding_ctx_length": False}
    embeddings = OpenAIEmbeddings(**common)
    vectors = embeddings.embed_documents(DOCUMENTS)
    query = embeddings.embed_query("How do birds fly?")
    scores = [sum(a * b for a, b in zip(query, vector)) for vector in vectors]
    want(max(scores) == scores[1], scores)
    want(len(OpenAIEmbeddings(**common, dimensions=64).embed_query("a")) == 64, "dimensions")


def test_litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # needs no network
    import litellm

    common = {"api_key": KEY, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16, "temperature": 0}
    for model, base in [(f"openai/{MODEL}", f"{URL}/v1"), (f"anthropic/{MODEL}", URL), (f"ollama_chat/{MODEL}", URL)]:
        answer = litellm.completion(model=model, api_base=base, **common)
        want("Paris" in answer.choices[0].message.content, model, answer)
        pieces = litellm.completion(model=model, api_base=base, stream=True, **common)
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        want("Paris" in text, model, text)
    answer = litellm.responses(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key=KEY, input=QUESTION, max_output_tokens=16)
    want(answer.output, answer)


def test_langchain_openai():
    from langchain_openai import ChatOpenAI

    common = {"model": MODEL, "api_key": KEY, "base_url": f"{URL}/v1", "temperature": 0, "max_tokens": 16}
    for more in ({}, {"use_responses_api": True}):
        chat = ChatOpenAI(**common, **more)
        want("Paris" in chat.invoke(QUESTION).text, more)
        want("Paris" in "".join(piece.text for piece in chat.stream(QUESTION)), more)
    # a second turn sends the first one's items back
    chat = ChatOpenAI(**common, use_responses_api=True, use_previous_response_id=True)
    first = chat.invoke(QUESTION)
    want(chat.invoke([("user", QUESTION), first, ("user", "Why?")]).text)


def test_agents():
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    import agents
    import openai

    agents.set_default_openai_client(openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0), use_for_tracing=False)
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"22 C in {city}"

    settings = agents.ModelSettings(temperature=0, max_tokens=600)  # a stream that ends at the limit is an error there
    agent = agents.Agent(name="a", model=MODEL, model_settings=settings)
    settings = agents.ModelSettings(temperature=0, max_tokens=60, tool_choice="required", parallel_tool_calls=False)
    caller = agents.Agent(name="b", model=MODEL, model_settings=settings, tools=[get_weather])

    async def runs():
        want((await agents.Runner.run(agent, QUESTION)).final_output)
        run = agents.Runner.run_streamed(agent, QUESTION)
        kinds = [event.type async for event in run.stream_events()]
        want("raw_response_event" in kinds and run.final_output, kinds, run.final_output)
        items = [item.type for item in (await agents.Runner.run(caller, "What is the weather in Oslo?")).new_items]
        want(items[:2] == ["tool_call_item", "tool_call_output_item"], items)

    asyncio.run(runs())


def test_ai_sdk():
    """`@ai-sdk/openai` uses the Responses API by default, and refers to stored items."""
    script = """
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText, tool, jsonSchema } from "ai";
const [url, key, model] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: url + "/v1", apiKey: key });
const question = "What is the capital of France?";
const one = await generateText({ model: openai(model), prompt: question, maxOutputTokens: 16 });
if (!one.text) throw new Error("no text");
let text = "";
for await (const piece of streamText({ model: openai(model), prompt: question, maxOutputTokens: 16 }).textStream) text += piece;
if (!text) throw new Error("no streamed text");
const messages = [{ role: "user", content: question }, ...one.response.messages, { role: "user", content: "Why?" }];
await generateText({ model: openai(model), messages, maxOutputTokens: 8 });
const weather = tool({ description: "The weather", inputSchema: jsonSchema(JSON.parse(process.argv[5])), execute: async () => "22 C" });
const called = await generateText({ model: openai(model), prompt: "What is the weather in Oslo?", tools: { weather }, toolChoice: "required", maxOutputTokens: 100 });
if (called.toolCalls[0].toolName !== "weather") throw new Error("no call");
const chat = await generateText({ model: openai.chat(model), prompt: question, maxOutputTokens: 16 });
if (!chat.text) throw new Error("no chat text");
"""
    node(script, json.dumps(CITY))


def test_ai_sdk_anthropic():
    """`@ai-sdk/anthropic` checks every member of a reply."""
    script = """
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, streamText, tool, jsonSchema } from "ai";
const [url, key, model] = process.argv.slice(2);
const anthropic = createAnthropic({ baseURL: url + "/v1", apiKey: key });
const common = { model: anthropic(model), prompt: "What is the capital of France?", maxOutputTokens: 100 };
const one = await generateText(common);
if (!one.text) throw new Error("no text");
let text = "";
for await (const part of streamText({ ...common, onError() {} }).fullStream) {
  if (part.type === "error") throw part.error;
  if (part.type === "text-delta") text += part.text;
}
if (!text) throw new Error("no streamed text");
const weather = tool({ description: "The weather", inputSchema: jsonSchema(JSON.parse(process.argv[5])), execute: async () => "22 C" });
const called = await generateText({ ...common, tools: { weather }, toolChoice: "required" });
if (called.toolCalls[0].toolName !== "weather") throw new Error("no call");
// a small model may write several calls, the last of them cut off: the next turn has one, and its result
const { toolCallId, toolName } = called.toolCalls[0];
const call = { type: "tool-call", toolCallId, toolName, input: { city: "Paris" } };
const result = { type: "tool-result", toolCallId, toolName, output: { type: "text", value: "22 C" } };
const messages = [{ role: "user", content: common.prompt }, { role: "assistant", content: [call] }, { role: "tool", content: [result] }];
await generateText({ model: common.model, messages, tools: { weather }, maxOutputTokens: 8 });
"""
    node(script, json.dumps(CITY))


def node(script, *arguments):
    """Runs a script of JavaScript with the server's URL, key and model, and more arguments."""
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=NODE, delete=False) as file:
        file.write(script)
    try:
        command = ["node", file.name, URL, KEY, MODEL, *arguments]
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=120)
        want(done.returncode == 0, done.stderr[-1500:])
    finally:
        os.unlink(file.name)


def test_lm_eval():
    """A local task of log-likelihoods, and one of generation, without a data set of the hub."""
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ["OPENAI_API_KEY"] = KEY
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"q": "The capital of France is", "choices": [" Paris", " a potato"], "gold": 0}] * 2
        Path(folder, "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = f"""
task: tern_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
        Path(folder, "choice.yaml").write_text(task)
        model = f"model={MODEL},base_url={URL}/v1/completions,tokenizer_backend=remote,auth_token={KEY},num_concurrent=1,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", model]
        command += ["--include_path", folder, "--tasks", "tern_choice", "--output_path", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, env={**os.environ, "HF_HOME": folder})
        want(done.returncode == 0, done.stderr[-2000:])
        results = json.loads(next(Path(folder).rglob("results_*.json")).read_text())["results"]
        want(results["tern_choice"]["acc,none"] == 1.0, results)


def test_fairness():
    """One client with many requests does not starve another."""
    many, done, lock = 96, [], threading.Lock()

    def ask(user):
        body = {"model": MODEL, "prompt": f"{user} says", "max_tokens": 48, "ignore_eos": True, "user": user[0]}
        fetch("/v1/completions", body)
        with lock:
            done.append(user)

    threads = [threading.Thread(target=ask, args=(f"m{i}",)) for i in range(many)]
    [thread.start() for thread in threads]
    while len(done) < many // 16:  # the queue is full of them
        time.sleep(0.01)
    start = time.monotonic()
    ask("o")
    took, before = time.monotonic() - start, done.index("o")
    [thread.join() for thread in threads]
    total = time.monotonic() - start
    print(f"        one request beside {many} of another client: {took:.1f} s of {total:.1f} s, {before} finished before it")
    # it does not wait for a slot: what runs beside it is of the same length
    want(before <= many // 2, f"{before} of {many} requests finished first")


def test_recorded_events():
    """Events that this model does not cause, as the server's own tests recorded them."""
    folder = Path(__file__).resolve().parent.parent / "fixtures" / "clients"
    read = lambda name: [json.loads(line) for line in (folder / name).read_text().splitlines()]
    if importlib.util.find_spec("openai"):
        from openai.types.responses import ResponseStreamEvent

        kinds = {typed(ResponseStreamEvent, event).type for event in read("responses.jsonl")}
        want({"response.reasoning_text.delta", "response.custom_tool_call_input.done"} <= kinds, kinds)
    if importlib.util.find_spec("anthropic"):
        from anthropic.types import RawMessageStreamEvent

        kinds = {typed(RawMessageStreamEvent, e).type for e in read("messages.jsonl") if e["type"] != "ping"}
        want("content_block_delta" in kinds, kinds)


def test_docs_examples():
    """Every `curl` of the pages about the server succeeds, or fails if the documentation shows an error."""
    folder = Path(__file__).resolve().parent.parent / "docs"
    docs = "".join((folder / name).read_text() for name in ("serving.md", "api.md", "operations.md"))
    ran = 0
    for block in docs.split("```console\n")[1:]:
        block = block.split("```")[0]
        for example in block.split("$ ")[1:]:
            # those about keys, host names and loading need another server
            if not example.startswith("curl") or "localhost:8080" not in example or any(word in example for word in ("/ready", "/health", " -H ")):
                continue
            scores = "/v1/rerank" in example or "/v1/score" in example
            if scores and not ENCODER:
                continue
            lines = example.splitlines()
            end = next((i for i, line in enumerate(lines) if example_ends("\n".join(lines[: i + 1]))), len(lines))
            command, shown = "\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :])
            command = command.replace("localhost:8080", ENCODER if scores else URL).replace("http://http://", "http://")
            command = command.replace("curl ", f"curl --max-time 60 -H 'Authorization: Bearer {KEY}' ", 1)
            command = command.replace('"smollm2', f'"{MODEL}').replace("/smollm2", f"/{MODEL}")
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90)
            want(done.returncode == 0, command, done.stderr)
            fails = lambda text: text.lstrip().startswith(('{"error"', '{"type":"error"'))
            want(fails(done.stdout) == fails(shown), command, done.stdout[:500])
            ran += 1
    want(ran > 30, f"{ran} examples")


def example_ends(text):
    """Whether a command is complete: its quotes are closed and its last line does not continue."""
    return text.count("'") % 2 == 0 and not text.endswith("\\")


def missing(name):
    """The package that a check needs and that is not installed."""
    if name.startswith("test_ai_sdk"):
        package = "@ai-sdk/anthropic" if name.endswith("anthropic") else "@ai-sdk/openai"
        return None if shutil.which("node") and Path(NODE or "-", "node_modules", package).is_dir() else package
    packages = ["openai", "anthropic", "ollama", "litellm", "langchain_openai", "langchain_cohere", "agents", "lm_eval", "cohere"]
    package = next((p for p in packages if name[5:].startswith(p)), None)
    if package and importlib.util.find_spec(package) is None:
        return package
    needs_encoder = "cohere" in name or name == "test_langchain_openai_embeddings"
    return "--encoder" if needs_encoder and not ENCODER else None


def main():
    global URL, KEY, MODEL, NODE, ENCODER
    options = checks.options(__doc__)
    options.add_argument("--node", default="", help="a folder with node_modules")
    options.add_argument("--encoder", default="", help="the URL of a server with a model for embeddings")
    options.add_argument("--all", action="store_true", help="fail if a package or --encoder is missing")
    args = options.parse_args()
    URL, KEY, NODE, ENCODER = args.url.rstrip("/"), args.api_key, args.node, args.encoder.rstrip("/")
    MODEL = fetch("/v1/models")["data"][0]["id"]
    checks.run(globals(), args.only, missing, args.all)


if __name__ == "__main__":
    main()
