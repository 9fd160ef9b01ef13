"""The official `openai` client against a running server, unchanged.

    python3 scripts/openai_test.py --url http://127.0.0.1:8080 --api-key KEY [--only NAME]

Every function named `test_...` is one check. The model behind the server must have a chat template; what it
says does not matter, only that the client understands it. Needs the PyPI package `openai`.
"""

import asyncio
import json
import re
import sys
import time
import urllib.request

import checks
from checks import refused, want

try:
    import openai
    from pydantic import BaseModel
except ImportError as error:
    sys.exit(f"error: {error.name} is not installed: pip install openai")

URL = KEY = MODEL = ""
HELLO = [{"role": "user", "content": "Say hello."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    }
]


def client(**changes):
    return openai.OpenAI(**{"base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "timeout": 120, **changes})


def chat(**params):
    return client().chat.completions.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 12, **params})


def metric(name):
    request = urllib.request.Request(f"{URL}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    return sum(float(m) for m in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)", text, re.M))


def test_models():
    models = client().models.list().data
    want(models and models[0].object == "model", models)
    want(client().models.retrieve(models[0].id).id == models[0].id)
    refused(openai.NotFoundError, lambda: client().models.retrieve("nobody"), "nobody")


def test_chat():
    answer = chat(temperature=0)
    choice = answer.choices[0]
    want(answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), answer)
    want(choice.message.role == "assistant" and choice.message.content, choice)
    want(choice.finish_reason in ("stop", "length"), choice)
    usage = answer.usage
    want(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 12, usage)
    want(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)


def test_stream_says_the_same():
    whole = chat(temperature=0, max_tokens=30).choices[0]
    chunks = list(chat(temperature=0, max_tokens=30, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    want(text == whole.message.content, repr(text), "is not", repr(whole.message.content))
    want(chunks[0].choices[0].delta.role == "assistant", chunks[0])
    finish = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    want(finish == [whole.finish_reason], finish)
    want(not chunks[-1].choices and chunks[-1].usage.completion_tokens > 0, chunks[-1])
    want(len({c.id for c in chunks}) == 1, "one id a stream")


def test_seed_and_choices():
    texts = lambda **p: [c.message.content for c in chat(temperature=1.0, n=3, max_tokens=20, **p).choices]
    first = texts(seed=7)
    want(first == texts(seed=7), "the same seed says the same")
    want(len(set(first)) > 1, "choices differ:", first)
    want(first != texts(seed=8), "another seed says something else")


def test_logprobs():
    content = chat(logprobs=True, top_logprobs=3, temperature=0).choices[0].logprobs.content
    for token in content:
        want(len(token.top_logprobs) == 3 and token.logprob <= 0, token)
        want(token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob, token)
        want(bytes(token.bytes).decode("utf-8", "replace") == token.token or token.bytes, token)
    want(content[0].token == content[0].top_logprobs[0].token, "greedy takes the best")


def test_decisions():
    questions = [
        {"type": "predicate", "name": "rain", "instructions": "It rains."},
        {"type": "choice", "instructions": "What is it about?", "choices": [{"value": "weather"}, {"value": True}]},
        {"type": "score", "name": "warm", "instructions": "How warm is it?", "levels": [{"label": "cold"}, {"label": "hot", "description": "over 30 C"}]},
    ]
    ask = lambda some: client().decisions.create(model=MODEL, input="It is a rainy day, and cold. " * 8, questions=some)
    decision = ask(questions)
    rain, about, warm = decision.answers
    want([rain.type, about.type, warm.type] == ["predicate", "choice", "score"], decision)
    want([rain.name, about.name, warm.name] == ["rain", None, "warm"], decision)
    want(0 <= rain.probability <= 1 and 0 <= warm.score <= 1 and about.choice in ("weather", True), decision)
    want([p.value for p in about.probabilities] == ["weather", True], about)
    for answer in (about, warm):
        want(abs(sum(p.probability for p in answer.probabilities) - 1) < 1e-6, answer)
    want(decision.usage.output_tokens == 3 and decision.usage.input_tokens_details.cached_tokens > 0, decision.usage)
    want([ask([question]).answers[0] for question in questions] == decision.answers, "the same numbers alone")
    refused(openai.BadRequestError, lambda: ask([]), "1 to 400 questions")


def test_stop_and_length():
    whole = chat(temperature=0, max_tokens=30).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    cut = chat(temperature=0, max_tokens=30, stop=[stop]).choices[0]
    want(cut.message.content == whole[: whole.index(stop)], repr(cut.message.content), "of", repr(whole))
    want(cut.finish_reason == "stop", cut)
    short = chat(temperature=0, max_completion_tokens=2, max_tokens=openai.omit)
    want(short.usage.completion_tokens == 2 and short.choices[0].finish_reason == "length", short)


def test_logit_bias_and_penalties():
    request = urllib.request.Request(
        f"{URL}/tokenize",
        json.dumps({"prompt": " moon", "add_special_tokens": False}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    token = json.load(urllib.request.urlopen(request, timeout=10))["tokens"][0]
    said = chat(temperature=0, logit_bias={str(token): 100}, max_tokens=3).choices[0].message.content
    want(said.lower().count("moon") >= 2, said)
    said = chat(temperature=0, logit_bias={str(token): 100}, frequency_penalty=2, max_tokens=3)
    want(said.choices[0].message.content, said)
    chat(presence_penalty=1, frequency_penalty=-1, extra_body={"repetition_penalty": 1.2, "top_k": 5, "min_p": 0.1})


def test_completions():
    complete = lambda **p: client().completions.create(
        **{"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **p}
    )
    plain = complete()
    want(plain.object == "text_completion" and plain.choices[0].text, plain)
    want(complete(echo=True).choices[0].text == "Once upon a time" + plain.choices[0].text)
    both = complete(prompt=["Once upon a time", "The sky is"])
    want([c.index for c in both.choices] == [0, 1] and both.choices[0].text == plain.choices[0].text, both)
    logprobs = complete(logprobs=2).choices[0].logprobs
    want(len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs), logprobs)
    want("".join(logprobs.tokens) == plain.choices[0].text, logprobs.tokens)
    streamed = "".join(c.choices[0].text for c in complete(stream=True) if c.choices)
    want(streamed == plain.choices[0].text, repr(streamed))
    want(len(complete(n=2, temperature=1).choices) == 2)
    refused(openai.BadRequestError, lambda: complete(suffix="The end."), "suffix")


def test_embeddings():
    embed = lambda text, **p: client().embeddings.create(model=MODEL, input=text, **p)
    answer = embed(["The cat sat on the mat.", "A cat is on the mat.", "Interest rates rose by two percent."])
    vectors = [d.embedding for d in answer.data]  # the client asks for base64
    floats = embed("The cat sat on the mat.", encoding_format="float").data[0].embedding
    want(all(abs(a - b) < 1e-4 for a, b in zip(floats, vectors[0])), "base64 and float differ")
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    want(all(abs(dot(v, v) - 1) < 1e-3 for v in vectors), "vectors have length 1")
    want(dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2]), "nearer in meaning is nearer")
    want(answer.usage.prompt_tokens > 0, answer.usage)


class Person(BaseModel):
    name: str
    age: int


def test_json_output():
    answer = chat(response_format={"type": "json_object"}, max_tokens=200, temperature=0).choices[0]
    want(answer.message.content.lstrip().startswith("{"), answer)
    want(answer.finish_reason == "length" or isinstance(json.loads(answer.message.content), dict), answer)
    schema = Person.model_json_schema()
    schema["properties"]["name"]["maxLength"] = 12
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    for seed in range(3):
        answer = chat(response_format=form, max_tokens=100, seed=seed).choices[0]
        if answer.finish_reason == "stop":
            Person.model_validate_json(answer.message.content)
    parsed = client().chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Person, max_tokens=300, temperature=0
    )
    want(parsed.choices[0].finish_reason == "length" or isinstance(parsed.choices[0].message.parsed, Person), parsed)


def test_structured_outputs():
    said = lambda rule: chat(extra_body={"structured_outputs": rule}, temperature=1).choices[0].message.content
    want(said({"choice": ["red", "green"]}) in ("red", "green"))
    want(re.fullmatch("[0-9]{3}-[0-9]{2}", said({"regex": "[0-9]{3}-[0-9]{2}"})))
    want(said({"grammar": 'start: "yes" | "no"'}) in ("yes", "no"))
    bad = lambda rule: refused(openai.BadRequestError, lambda: said(rule))
    bad({"regex": "("})
    bad({"grammar": "start: nobody"})


def test_tools():
    forced = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 100, "temperature": 0}
    choice = chat(**forced, parallel_tool_calls=False).choices[0]
    call = choice.message.tool_calls[0]
    want(choice.finish_reason == "tool_calls" and call.function.name == "get_weather", choice)
    want(json.loads(call.function.arguments)["unit"] in ("C", "F"), call)
    chunks = list(chat(**forced, parallel_tool_calls=False, stream=True))
    pieces = [t for c in chunks if c.choices for t in c.choices[0].delta.tool_calls or []]
    want(pieces[0].function.name == "get_weather" and pieces[0].id, pieces[0])
    want("".join(p.function.arguments or "" for p in pieces) == call.function.arguments, pieces)
    want(not any(c.choices[0].delta.content for c in chunks if c.choices), "markup leaked into the content")
    many = chat(**forced).choices[0].message
    want(len(many.tool_calls) > 0 and not many.content, many)
    back = HELLO + [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "22 C"},
    ]
    want(chat(messages=back, tools=TOOLS).choices[0].message, "an answer after a tool's result")


def test_refusals():
    bad = lambda *words, **p: refused(openai.BadRequestError, lambda: chat(**p), *words)
    bad("frobnicate", extra_body={"frobnicate": 1})
    bad("temperature", temperature=-1)
    bad("top_p", top_p=1.5)
    bad("n", n=100_000)
    bad("messages", messages=[])
    bad("stop", stop=["a"] * 1000)
    bad("top_logprobs", logprobs=True, top_logprobs=1000)
    bad("json_schema", response_format={"type": "json_schema"})
    error = bad("context", messages=[{"role": "user", "content": "word " * 20_000}])
    want(error.code == "context_length_exceeded", error.code)
    want(chat(max_tokens=10_000_000, stop=["."]).choices[0].finish_reason, "more tokens than fit are clamped")
    refused(openai.NotFoundError, lambda: chat(model="nobody"), "nobody")
    if KEY != "none":
        wrong = client(api_key="wrong")
        refused(openai.AuthenticationError, lambda: wrong.models.list())


def test_conversation_in_parts():
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    want(chat(messages=messages).choices[0].message.content is not None)


def test_many_at_once_say_what_each_says_alone():
    asked = [f"Tell me about the number {i}." for i in range(8)]
    ask = lambda text: {"model": MODEL, "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": text}]}
    alone = [client().chat.completions.create(**ask(text)).choices[0].message.content for text in asked]

    async def together():
        many = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
        answers = await asyncio.gather(*(many.chat.completions.create(**ask(text)) for text in asked))
        return [a.choices[0].message.content for a in answers]

    want(asyncio.run(together()) == alone, "batching changed a text")


def test_a_client_that_leaves_is_forgotten():
    stream = chat(max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    for _ in zip(range(3), stream):
        pass
    stream.close()
    deadline = time.monotonic() + 5
    while metric("vllm:num_requests_running") > 0:
        want(time.monotonic() < deadline, "still running five seconds after the client left")
        time.sleep(0.05)


def test_a_prompt_is_remembered():
    messages = [{"role": "system", "content": "You know much about birds. " * 20}] + HELLO
    chat(messages=messages, max_tokens=1)
    usage = chat(messages=messages, max_tokens=1).usage
    want(usage.prompt_tokens_details.cached_tokens >= 64, usage)


def test_adapters():
    adapters = [model.id for model in client().models.list().data if getattr(model, "parent", None) == MODEL]
    text = lambda model, **body: chat(model=model, temperature=0, extra_body=body).choices[0].message.content
    base = text(MODEL)
    alone = {name: text(name) for name in adapters}
    want(len({base, *alone.values()}) == len(adapters) + 1, "adapters that change nothing", base, alone)
    for number, name in enumerate(adapters):
        want(text(MODEL, lora=name) == alone[name], name)
        want(text(MODEL, lora=[{"id": number, "scale": 0}]) == base, name)
        want(chat(model=name).model == name, name)
    names = [MODEL, *adapters] * 3

    async def together():
        one = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
        ask = lambda name: one.chat.completions.create(model=name, messages=HELLO, max_tokens=12, temperature=0)
        return [answer.choices[0].message.content for answer in await asyncio.gather(*map(ask, names))]

    want(asyncio.run(together()) == [{MODEL: base, **alone}[name] for name in names], "other texts together")
    refused(openai.NotFoundError, lambda: chat(model="no-such-adapter"), "does not exist")
    refused(openai.BadRequestError, lambda: chat(extra_body={"lora": "no-such-adapter"}), "lora")


def main():
    global URL, KEY, MODEL
    args = checks.options(__doc__).parse_args()
    URL, KEY = args.url.rstrip("/"), args.api_key
    MODEL = client().models.list().data[0].id
    checks.run(globals(), args.only)


if __name__ == "__main__":
    main()
