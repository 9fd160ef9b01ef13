"""Texts, judged against the command, which is the Rust library."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from pydantic import BaseModel
from tern_llm import Answer, Model, RequestError

PROMPTS = ["Once upon a time", "The little dog", "One day, Tom", "Lily saw", "In the park"]


def test_texts_are_those_of_the_library(stories, tern):
    for prompt, seed in zip(PROMPTS, range(5)):
        options = ["--temp", "0.8", "--seed", str(seed), "-n", "24", "--device", "cpu", "-q"]
        want = tern("run", prompt, "-m", "stories", *options)
        got = stories.generate(prompt, temperature=0.8, seed=seed, max_tokens=24).text
        assert want.rstrip("\n") == got.rstrip("\n")


def test_a_batch_is_the_same_texts_in_order(stories):
    many = PROMPTS * 30
    together = stories.generate(many, temperature=0.9, seed=3, max_tokens=12)
    alone = [stories.generate(prompt, temperature=0.9, seed=3, max_tokens=12) for prompt in PROMPTS] * 30
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert len(set(answer.text for answer in together)) == 5
    assert stories.generate([], max_tokens=1) == []


def test_prompts_may_be_tokens(stories):
    tokens = stories.tokenize("Once upon a time")
    want = stories.generate("Once upon a time", max_tokens=5, temperature=0).text
    assert stories.generate(tokens, max_tokens=5, temperature=0).text == want
    assert stories.generate(np.array(tokens), max_tokens=5, temperature=0).text == want
    assert [one.text for one in stories.generate([tokens, tokens], max_tokens=5, temperature=0)] == [want] * 2


def test_an_answer_has_its_tokens_and_counts(stories):
    answer = stories.generate("Once upon a time", max_tokens=6, temperature=0, logprobs=3)
    assert isinstance(answer, Answer)
    assert (answer.finish_reason, answer.prompt_tokens) == (
        "length",
        len(stories.tokenize("Once upon a time")),
    )
    assert answer.token_ids.dtype == np.int32 and stories.detokenize(answer.token_ids) == answer.text
    assert answer.logprobs.dtype == np.float32 and answer.logprobs.shape == (6,)
    for token, logprob, top in zip(answer.token_ids, answer.logprobs, answer.top_logprobs):
        assert top[int(token)] == pytest.approx(logprob) and max(top.values()) == pytest.approx(logprob)
        assert len(top) == 3
    assert stories.generate("Once", max_tokens=1).logprobs is None


def test_the_whole_distribution_is_a_row(stories):
    rows = stories.next_logprobs(PROMPTS)
    assert rows.shape == (5, stories.vocab_size) and rows.dtype == np.float32
    assert np.exp(rows.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(5), abs=1e-4)
    first = stories.generate(PROMPTS[1], max_tokens=1, temperature=0, logprobs=1)
    assert rows[1].argmax() == first.token_ids[0] and rows[1].max() == pytest.approx(
        first.logprobs[0], abs=1e-5
    )
    assert np.array_equal(stories.next_logprobs(PROMPTS[0]), rows[0])
    with pytest.raises(RequestError, match="prompt"):
        stories.next_logprobs([[]])


def test_choices_stops_and_seeds(stories):
    one, two = stories.generate("Once", n=2, seed=5, max_tokens=20, temperature=1.5)
    assert one.text != two.text
    many = stories.generate(["Once", "The"], n=2, seed=5, max_tokens=20, temperature=1.5)
    assert [len(choices) for choices in many] == [2, 2] and many[0][0].text == one.text
    stopped = stories.generate("Once upon a time", stop=" girl", temperature=0)
    assert stopped.text.endswith("little") and stopped.finish_reason == "stop"
    assert len(stories.generate("Once", min_tokens=20, max_tokens=20, ignore_eos=True).token_ids) == 20
    long = stories.generate("Once", temperature=0, ignore_eos=True)
    assert long.prompt_tokens + len(long.token_ids) == stories.context


class Animal(BaseModel):
    name: str
    legs: int


def test_constraints(stories):
    assert re.fullmatch(r"\d{4}-\d\d", stories.generate("Date:", regex=r"\d{4}-\d\d").text)
    assert stories.generate("It is", choice=["big", "small"]).text in ("big", "small")
    assert stories.generate("1 + 1 =", grammar="root ::= [0-9]").text.isdigit()
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = stories.generate("JSON:", json_schema=schema, temperature=0)
    assert answer.parsed == json.loads(answer.text) and isinstance(answer.parsed["a"], bool)
    with pytest.raises(ValueError, match="no json_schema"):
        _ = stories.generate("a", max_tokens=1).parsed
    with pytest.raises(RequestError, match="structured_outputs"):
        stories.generate("a", regex="a", choice=["b"])


def test_types_of_pydantic_are_schemas(smollm):
    prompt = "A horse as JSON: "
    animal = smollm.generate(prompt, json_schema=Animal, temperature=0, max_tokens=60).parsed
    assert isinstance(animal, Animal) and isinstance(animal.legs, int)
    point = smollm.generate("A point: ", json_schema=tuple[int, int], temperature=0, max_tokens=60).parsed
    assert isinstance(point, tuple) and len(point) == 2
    cut = smollm.generate(prompt, json_schema=Animal, temperature=0, max_tokens=2)
    with pytest.raises(ValueError, match="cut off after 2 tokens"):
        _ = cut.parsed


def test_wrong_requests_say_what_is_wrong(stories):
    for options, words in [
        ({"temperature": 3}, "temperature: expected a number from 0 to 2, got 3"),
        ({"tempreature": 1}, "tempreature"),
        ({"max_tokens": 0}, "max_tokens: expected an integer of 1 or more, got 0"),
        ({"regex": "("}, "regex"),
        ({"lora": "poet"}, "lora"),
        ({"stop": ""}, "stop: strings must not be empty"),
    ]:
        with pytest.raises(RequestError, match=re.escape(words)) as caught:
            stories.generate("Once", **options)
        assert caught.value.status == 400, options
    with pytest.raises(RequestError) as caught:
        stories.generate(["Once"] * 3 + ["word " * 5000], max_tokens=2)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(TypeError, match="Model.stream"):
        stories.generate("Once", stream=True)
    with pytest.raises(TypeError, match="what JSON has, got object"):
        stories.generate("Once", logit_bias={1: object()})


def test_wrong_loads_say_what_is_wrong(tmp_path):
    from tern_llm import LoadError

    for options, error, words in [
        ({"device": "gpu"}, ValueError, "device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ({"context": 0}, ValueError, "context: expected a whole number from 1, got 0"),
        ({"contxt": 1}, TypeError, "unknown option contxt"),
        ({"threads": "two"}, TypeError, "threads: "),
        ({"kv": "f8"}, ValueError, "kv: expected f16, int8 or fp8"),
        ({"pooling": "sum"}, ValueError, "pooling: "),
        ({"lora": ["a"]}, TypeError, "lora: expected a dict"),
        ({"context": 1 << 20}, LoadError, "exceeds the trained context"),
    ]:
        with pytest.raises(error, match=re.escape(words).replace("'", "['\"]")):
            Model("stories", **options)
    missing = tmp_path / "missing.gguf"
    with pytest.raises(LoadError, match="missing.gguf"):
        Model(missing)
    missing.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LoadError):
        Model(missing)
