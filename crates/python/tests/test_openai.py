"""Whole bodies: the same status, body and events as the server over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tern_llm import RequestError

#: What differs between two replies to the same request.
CHANGES = re.compile(
    r'"(id|created|item_id|created_at|completed_at'
    # guessing stops where it was measured not to pay
    r'|accepted_prediction_tokens|rejected_prediction_tokens)":("[^"]*"|[0-9.]+)'
)

CHAT = {"messages": [{"role": "user", "content": "Name a bird."}], "temperature": 0, "max_tokens": 12}
REQUESTS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "temperature": 5}),
    ("/v1/chat/completions", {**CHAT, "nonsense": 1}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/completions", {"prompt": ["Once", "Two"], "n": 2, "seed": 4, "max_tokens": 8}),
    ("/v1/completions", {"prompt": "Once", "seed": 4, "max_tokens": 8, "stream": True}),
    (
        "/v1/responses",
        {"input": "Name a bird.", "temperature": 0, "max_output_tokens": 8, "stream": True, "store": False},
    ),
    ("/v1/messages", {**CHAT, "stream": True}),
    ("/v1/messages", {**CHAT, "max_tokens": -3}),
    (
        "/api/generate",
        {
            "model": "smollm2",
            "prompt": "Hi",
            "stream": False,
            "options": {"temperature": 0, "num_predict": 4},
        },
    ),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ("/tokenize", {"prompt": "a b c"}),
    ("/nowhere", {}),
]


@pytest.fixture(scope="module")
def server(smollm_file):
    """The address of a server of the same model."""
    command = [
        str(Path(sys.executable).with_name("tern")),
        "serve",
        "-m",
        smollm_file,
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    command += ["-c", "1024", "--served-model-name", smollm_file, "--max-num-seqs", "8"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"listening on (http://\S+)", line):
                address = found[1]
            if "is ready" in line:
                break
        while over_http(address, "/ready")[0] != 200:  # the line comes a moment before
            time.sleep(0.02)
        yield address
    finally:
        process.kill()
        process.wait()


def over_http(address: str, path: str, body: dict | None = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def comparable(value) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return re.sub(r'"(total|load|prompt_eval|eval)_duration":\d+', "", CHANGES.sub("", text))


@pytest.mark.parametrize(
    ("path", "body"), REQUESTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_replies_are_those_of_the_server(smollm, server, path, body):
    if body.get("model"):
        body = {**body, "model": smollm.name}
    status, text = over_http(server, path, body)
    try:
        got = smollm.openai(path, body)
    except RequestError as error:
        assert error.status == status
        want = json.loads(text)
        want = want.get("error", want)
        assert error.body == (want if isinstance(want, dict) else {"message": want})
        return
    assert status == 200
    if body.get("stream"):
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        want = [json.loads(line) for line in lines if line != "[DONE]"]
        assert comparable(list(got)) == comparable(want)
    else:
        assert comparable(got) == comparable(json.loads(text))


def test_bodies_that_are_no_json(stories):
    with pytest.raises(RequestError) as caught:
        stories.openai("/v1/completions", b"{")
    assert caught.value.status == 400
    with pytest.raises(RequestError, match="invalid request"):
        stories.openai("a path", {})
    assert stories.openai("/v1/models")["data"][0]["id"] == "stories"
    assert "vllm:num_requests_running" in stories.openai("/metrics")
