"""Conversations and tools."""

from __future__ import annotations

import json

import pytest
from tern_llm import RequestError

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_answers_are_those_of_the_library(smollm, smollm_file, tern):
    question = "What is the capital of France?"
    want = tern(
        "run", question, "-m", smollm_file, "-n", "24", "--temp", "0", "--device", "cpu", "-q", "-c", "1024"
    )
    assert smollm.chat(question, max_tokens=24, temperature=0).text.strip() == want.strip()


def test_a_conversation_goes_on(smollm):
    messages = [{"role": "user", "content": "Name a sea bird."}]
    first = smollm.chat(messages, max_tokens=16, temperature=0)
    messages += [first.message, {"role": "user", "content": "And another?"}]
    second = smollm.chat(messages, max_tokens=16, temperature=0)
    assert second.prompt_tokens > first.prompt_tokens and second.text


def test_conversations_are_batched(smollm):
    questions = ["Name a bird.", "Name a fish."]
    chats = [[{"role": "user", "content": question}] for question in questions]
    together = smollm.chat(chats, max_tokens=12, temperature=0)
    assert [one.text for one in together] == [
        smollm.chat(one, max_tokens=12, temperature=0).text for one in questions
    ]


def test_tools_are_called(smollm):
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 64}
    answer = smollm.chat(messages, **options)
    [call] = answer.tool_calls
    assert (answer.finish_reason, call.name) == ("tool_calls", "weather") and json.loads(call.arguments)[
        "city"
    ]
    stream = smollm.stream(messages, **options)
    whole = stream.wait()
    assert (whole.tool_calls[0].name, whole.tool_calls[0].arguments) == (call.name, call.arguments)
    messages += [answer.message, call.message({"degrees": 4})]
    assert smollm.chat(messages, tools=[WEATHER], tool_choice="none", max_tokens=16, temperature=0).text


def test_a_model_without_a_template_does_not_chat(stories):
    with pytest.raises(RequestError, match="chat template") as caught:
        stories.chat("Hello")
    assert caught.value.code == "no_chat_template"
