"""Streams, blocking and async, and what ends them."""

from __future__ import annotations

import asyncio
import gc
import re
import time

import pytest
from tern_llm import RequestError


def running(model) -> int:
    """Sequences that run or wait."""
    text = model.openai("/metrics")
    return sum(
        int(float(value))
        for value in re.findall(r"^vllm:num_requests_(?:running|waiting)\S* (\S+)$", text, re.M)
    )


def idle(model) -> None:
    """Waits until no sequence runs any more."""
    end = time.monotonic() + 5
    while running(model):
        assert time.monotonic() < end, "the request still runs"
        time.sleep(0.01)


def test_deltas_are_the_answer(stories, smollm):
    for model, prompt in [(stories, "Once"), (smollm, [{"role": "user", "content": "Name a bird."}])]:
        whole = (
            model.generate(prompt, seed=1, max_tokens=24, logprobs=2)
            if prompt == "Once"
            else model.chat(prompt, seed=1, max_tokens=24, logprobs=2)
        )
        stream = model.stream(prompt, seed=1, max_tokens=24, logprobs=2)
        deltas = list(stream)
        assert "".join(delta.text for delta in deltas) == whole.text == stream.text
        assert sum((delta.token_ids for delta in deltas), []) == whole.token_ids.tolist()
        assert deltas[-1].finish_reason == whole.finish_reason
        answer = stream.wait()
        assert answer.text == whole.text and answer.prompt_tokens == whole.prompt_tokens
        assert answer.logprobs.tolist() == whole.logprobs.tolist()


def test_an_ended_stream_ends_its_request(stories):
    for end in ("close", "with", "drop"):
        stream = stories.stream("Once", ignore_eos=True)
        next(stream)
        assert running(stories) == 1
        if end == "close":
            stream.close()
        elif end == "with":
            with stream:
                pass
        else:
            del stream
            gc.collect()
        idle(stories)


def test_errors_come_before_the_first_delta(stories):
    with pytest.raises(RequestError, match="temperature"):
        stories.stream("Once", temperature=9)

    async def main():
        with pytest.raises(RequestError, match="temperature"):
            async for _ in stories.astream("Once", temperature=9):
                pass

    asyncio.run(main())


def test_async_streams_run_beside_each_other(stories):
    async def text(seed):
        stream = stories.astream("Once upon a time", seed=seed, max_tokens=24)
        return "".join([delta.text async for delta in stream])

    async def main():
        return await asyncio.gather(*map(text, range(16)))

    texts = asyncio.run(main())
    want = [stories.generate("Once upon a time", seed=seed, max_tokens=24).text for seed in range(16)]
    assert texts == want


def test_the_loop_runs_while_a_model_works(stories):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        answers = await stories.agenerate(["Once"] * 64, max_tokens=64, ignore_eos=True)
        ticking.cancel()
        return len(answers), ticks

    count, ticks = asyncio.run(main())
    assert count == 64 and ticks > 20


def test_a_cancelled_task_cancels_its_request(stories):
    async def main():
        async def read():
            async for _ in stories.astream("Once", ignore_eos=True):
                pass

        tasks = [
            asyncio.create_task(read()),
            asyncio.create_task(stories.agenerate(["Once"] * 4, ignore_eos=True)),
        ]
        await asyncio.sleep(0.05)
        assert running(stories) > 0
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError)

    asyncio.run(main())
    idle(stories)


def test_everything_has_an_async_form(stories, minilm):
    from tern_llm import Model

    async def main():
        assert (await stories.agenerate("Once", max_tokens=2, temperature=0)).text
        reply = await stories.aopenai("/v1/completions", {"prompt": "Once", "max_tokens": 2, "stream": True})
        assert [event["object"] async for event in reply][0] == "text_completion"
        assert (await Model(minilm).aembed(["a", "b"])).shape == (2, 384)

    asyncio.run(main())


def test_many_threads_share_a_model(stories):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        texts = list(
            pool.map(lambda seed: stories.generate("Once", seed=seed, max_tokens=16).text, range(64))
        )
    assert texts[:3] == [stories.generate("Once", seed=seed, max_tokens=16).text for seed in range(3)]
