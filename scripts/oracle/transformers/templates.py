#!/usr/bin/env python3
"""Records Hugging Face's rendering of every chat template and conversation.

    python scripts/oracle/transformers/templates.py TEMPLATES_FOLDER > crates/text/tests/templates.json

Needs jinja2 3.1. The environment below is the one `transformers` builds in `chat_template_utils`.
For each template and conversation the fixture holds "error", or the output's length in bytes,
SHA-256 and first characters.
"""

import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1_753_920_000 + 3_723  # 2025-07-31 01:02:03, a day whose number has two digits
HEAD = 160
BOS, EOS = "<|bos|>", "<|eos|>"


class Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's text; renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(format)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city, <now> & \"later\"",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "nullable": True},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "flag": {"type": "boolean", "default": None},
            },
            "required": ["city"],
        },
        "return": {"type": "object", "description": "What it is like"},
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}
UNTYPED = {
    "type": "function",
    "function": {
        "name": "measure",
        "description": "Schemas whose types are lists or choices.",
        "parameters": {
            "type": "object",
            "properties": {
                "exact": {"type": ["number", "null"]},
                "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                "items": {"type": "array", "items": {"type": "object", "properties": {"keys": {"type": "string"}}}},
            },
        },
    },
}


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, id="call00001"):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def tool(content, name="get_weather", id="call00001"):
    return {"role": "tool", "name": name, "tool_call_id": id, "content": content}


CONVERSATIONS = {
    "user": {"messages": [user("Hello")]},
    "system": {"messages": [system("  Be brief.\n"), user("Hi there ")]},
    "turns": {
        "messages": [
            system("You are Tern."),
            user("One?"),
            assistant("Uno."),
            user("Two?"),
            assistant("<think>\nEasy.\n</think>\n\nDos."),
            user("Three?"),
        ]
    },
    "no_prompt": {"messages": [user("One?"), assistant("Uno.")], "add_generation_prompt": False},
    "unicode": {
        "messages": [
            system("Übung <b>&\"' macht</b> {{ not }} {% a %} template"),
            user("日本語 🙂 <|im_end|> \\n \t tab\r\nline e\u0301"),
            assistant("naïve \u2028 \x7f"),
            user("   "),
        ]
    },
    "tools": {"messages": [user("Weather in Zürich?")], "tools": [WEATHER, CLOCK]},
    "tools_untyped": {"messages": [user("Measure")], "tools": [UNTYPED]},
    "tools_system": {"messages": [system("Use tools."), user("Time?")], "tools": [CLOCK]},
    "calls": {
        "messages": [
            system("Use tools."),
            user("Weather in Zürich & Genève?"),
            assistant(
                "",
                tool_calls=[
                    call(
                        "get_weather",
                        {
                            "city": "Zürich <1>",
                            "days": 3,
                            "exact": 1.5,
                            "flag": True,
                            "none": None,
                            "where": {"lat": 47.0, "tags": ["a", 'b"']},
                        },
                    )
                ],
            ),
            tool('{"sky": "clear", "t": 21.5}'),
            assistant("Clear, 21.5 degrees."),
            user("Thanks. And the time?"),
        ],
        "tools": [WEATHER, CLOCK],
    },
    "calls_text": {
        "messages": [
            user("Weather?"),
            assistant("Let me see.", tool_calls=[call("get_weather", '{"city": "Bern"}')]),
            tool("rain"),
        ],
        "tools": [WEATHER],
    },
    "calls_two": {
        "messages": [
            user("Weather and time?"),
            assistant(
                None,
                reasoning_content="Two calls.",
                tool_calls=[call("get_weather", {"city": "Bern"}), call("clock", {}, "call00002")],
            ),
            tool("rain"),
            tool("12:00", "clock", "call00002"),
            assistant("Rain at noon.", reasoning_content="Done.", thinking="Done."),
            user("Ok"),
        ],
        "tools": [WEATHER, CLOCK],
    },
    "thinking": {
        "messages": [user("Think."), assistant("Yes.", reasoning_content="Hm.\n"), user("More.")],
        "kwargs": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    },
    "no_thinking": {
        "messages": [system("/no_think"), user("Do not.")],
        "kwargs": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    },
    "parts": {
        "messages": [
            system([{"type": "text", "text": "Be brief."}]),
            user([{"type": "text", "text": "Part one, "}, {"type": "text", "text": "part <two>"}]),
            assistant([{"type": "text", "text": "Read."}]),
            user([{"type": "text", "text": "Good"}]),
        ]
    },
    "developer": {"messages": [{"role": "developer", "content": "Be terse."}, user("Hi"), user("again")]},
    "empty": {"messages": []},
    "kwargs": {
        "messages": [user("Hello"), assistant("Prefix", prefix=True)],
        "tools": [],
        "kwargs": {
            "documents": [{"title": "A <title>", "text": "Some text.", "doc_id": 1}],
            "date_string": "1 Jan 2026",
            "custom_tools": None,
            "builtin_tools": ["python"],
            "clear_thinking": False,
            "keep_all_reasoning": True,
            "continue_final_message": True,
        },
        "add_generation_prompt": False,
    },
}


def render(env, source, talk):
    try:
        text = env.from_string(source).render(
            messages=talk["messages"],
            tools=talk.get("tools"),
            add_generation_prompt=talk.get("add_generation_prompt", True),
            **{"documents": None, "bos_token": BOS, "eos_token": EOS, **talk.get("kwargs", {})},
        )
    except Exception as error:  # any refusal is the same answer: no prompt
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return "error"
    data = text.encode("utf-8")
    return [len(data), hashlib.sha256(data).hexdigest(), text[:HEAD]]


def main():
    env = environment()
    goldens = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        goldens[path.name] = {}
        for name, talk in CONVERSATIONS.items():
            print(f"{path.name} {name}", end="  ", file=sys.stderr)
            goldens[path.name][name] = render(env, source, talk)
            print(file=sys.stderr)
    fixture = {"now": NOW, "bos": BOS, "eos": EOS, "conversations": CONVERSATIONS, "goldens": goldens}
    json.dump(fixture, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
