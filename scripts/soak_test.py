"""Soak test of a running server: many clients with random streams, disconnects and bad
requests, then a check for leaks.

    python3 scripts/soak_test.py --url http://127.0.0.1:8080 [--api-key KEY] [--clients 64] [--seconds 120] [--pid PID]

With the server's process id it also checks the memory. Fails if any response is unexpected, a KV page or a
state slot is not freed, or the memory keeps growing. Needs the PyPI package `httpx`.
"""

import argparse
import asyncio
import collections
import json
import random
import re
import sys
import time

try:
    import httpx
except ImportError:
    sys.exit("error: httpx is not installed: pip install httpx")

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards mix potions in tall blue jars".split()
BAD = [
    ({"temperature": "hot"}, 400),
    ({"frobnicate": True}, 400),
    ({"max_tokens": -7}, 400),
    ({"messages": []}, 400),
    ({"model": "nobody"}, 404),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}}, 400),
]


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024  # MiB


class Soak:
    def __init__(self, args):
        self.args = args
        self.outcomes = collections.Counter()
        self.unexpected = []
        self.tokens = 0
        self.first = []  # seconds to the first token
        self.cached, self.prompts = 0, 0  # tokens of the prompts of next turns
        self.end = time.monotonic() + args.seconds
        headers = {"Authorization": f"Bearer {args.api_key}"}
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(base_url=args.url, headers=headers, timeout=300, limits=limits)

    def request(self, rng):
        text = " ".join(rng.choices(WORDS, k=rng.choice([5, 20, 100, 250])))
        body = {
            "messages": [{"role": "system", "content": "You are a helpful bird."}, {"role": "user", "content": text}],
            "max_tokens": rng.choice([4, 16, 64, 400]),
            "ignore_eos": rng.random() < 0.5,
            "temperature": rng.choice([0, 1]),
            "seed": rng.randrange(100),
            "stream": rng.random() < 0.8,
        }
        if rng.random() < 0.1:
            body["response_format"] = {"type": "json_object"}
        if rng.random() < 0.1:
            body.update(n=2, stop=["a"], logprobs=True, top_logprobs=2)
        return body

    async def client(self, number):
        rng = random.Random(number)
        while time.monotonic() < self.end:
            kind = rng.random()
            try:
                if kind < 0.1:
                    await self.bad(rng)
                elif kind < 0.3:
                    await self.leave(rng)
                else:
                    await self.stay(rng)
            except Exception as error:
                self.unexpected.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(rng.random() * 0.05)

    async def bad(self, rng):
        change, status = rng.choice(BAD)
        answer = await self.http.post("/v1/chat/completions", json={**self.request(rng), **change})
        self.outcomes[f"refused {answer.status_code}"] += 1
        if answer.status_code != status or "message" not in answer.json()["error"]:
            self.unexpected.append(f"{change}: {answer.status_code} {answer.text[:200]}")

    async def leave(self, rng):
        body = {**self.request(rng), "stream": True, "max_tokens": 128}
        chunks = rng.randrange(6)
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                chunks -= line.startswith("data:")
                if chunks < 0:
                    break
        self.outcomes["left"] += 1

    async def go_on(self, body, said, rng):
        """The next turn of a conversation."""
        turns = [{"role": "assistant", "content": said}, {"role": "user", "content": rng.choice(WORDS)}]
        body = {**body, "messages": [*body["messages"], *turns], "max_tokens": 16}
        answer = await self.http.post("/v1/chat/completions", json=body)
        if answer.status_code == 200:
            usage = answer.json()["usage"]
            self.cached += usage["prompt_tokens_details"]["cached_tokens"]
            self.prompts += usage["prompt_tokens"]
        elif answer.status_code != 429:
            self.unexpected.append(f"next turn: {answer.status_code} {answer.text[:200]}")
        self.outcomes["next turns"] += 1

    async def stay(self, rng):
        body = self.request(rng)
        start = time.monotonic()
        if not body["stream"]:
            answer = await self.http.post("/v1/chat/completions", json=body)
            if answer.status_code == 429:
                self.outcomes["busy"] += 1
                return
            usage = answer.json().get("usage")
            if answer.status_code != 200 or not usage:
                self.unexpected.append(f"{answer.status_code} {answer.text[:200]}")
                return
            self.tokens += usage["completion_tokens"]
            self.outcomes["answered"] += 1
            if usage["total_tokens"] < 200:
                await self.go_on(body, answer.json()["choices"][0]["message"]["content"], rng)
            return
        done, first = False, None
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code == 429:
                self.outcomes["busy"] += 1
                return
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data:"):
                    chunk = json.loads(line[5:])
                    if "error" in chunk:
                        self.unexpected.append(line[:200])
                    elif chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                        first = first or time.monotonic() - start
                        self.tokens += 1
        if first:
            self.first.append(first)
        self.outcomes["streamed"] += 1
        if not done:
            self.unexpected.append(f"a stream broke off: {answer.status_code}")

    async def metrics(self):
        text = (await self.http.get("/metrics")).text
        values = collections.Counter()
        for name, value in re.findall(r"^([a-z_:]+)(?:\{[^}]*\})? ([-+0-9.e]+)$", text, re.M):
            values[name] += float(value)
        return values

    async def watch(self, memory):
        while time.monotonic() < self.end:
            if self.args.pid:
                memory.append(resident(self.args.pid))
            m = await self.metrics()
            running, waiting = m["vllm:num_requests_running"], m["vllm:num_requests_waiting"]
            print(
                f"{self.end - time.monotonic():5.0f} s left: {running:.0f} running, {waiting:.0f} waiting,"
                f" KV {100 * m['vllm:kv_cache_usage_perc']:.0f} %, {m['vllm:num_preemptions_total']:.0f} preemptions,"
                f" {self.tokens} tokens, {memory[-1] if memory else 0:.0f} MiB",
                flush=True,
            )
            await asyncio.sleep(5)

    async def run(self):
        memory = []
        start = time.monotonic()
        await asyncio.gather(self.watch(memory), *(self.client(i) for i in range(self.args.clients)))
        seconds = time.monotonic() - start
        for _ in range(100):
            m = await self.metrics()
            if m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] == 0:
                break
            await asyncio.sleep(0.1)
        print(f"{dict(self.outcomes)}, {self.tokens / seconds:.0f} tokens/s")
        if self.first:
            self.first.sort()
            half, most = self.first[len(self.first) // 2], self.first[int(len(self.first) * 0.99)]
            print(f"first token after {half:.2f} s (half), {most:.2f} s (99 %)")
        print(f"{m['vllm:num_preemptions_total']:.0f} preemptions, KV use at the end {m['vllm:kv_cache_usage_perc']}")
        if self.prompts:
            print(f"next turns: {self.cached} of {self.prompts} prompt tokens were cached")
        slots, snapshots = m["tern:state_slots_total"], m["tern:state_snapshots"]
        if slots:
            hits = m["tern:state_snapshot_hits_total"]
            print(f"{slots:.0f} state slots, {snapshots:.0f} snapshots at the end, {hits:.0f} prompts began with one")
        if m["tern:state_slots_free"] != slots:
            self.unexpected.append(f"state slots in use at the end: {dict(m)}")
        if m["vllm:kv_cache_usage_perc"] != 0 or m["vllm:num_requests_running"] != 0:
            self.unexpected.append(f"at the end {dict(m)}")
        if len(memory) >= 8:
            early, late = max(memory[len(memory) // 4 : len(memory) // 2]), max(memory[-len(memory) // 4 :])
            print(f"memory {early:.0f} MiB early, {late:.0f} MiB late")
            if late > early * 1.1 + 20:
                self.unexpected.append(f"memory grew from {early:.0f} to {late:.0f} MiB")
        return self.unexpected


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url", required=True)
    options.add_argument("--api-key", default="none")
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--seconds", type=float, default=120)
    options.add_argument("--pid", type=int)
    unexpected = asyncio.run(Soak(options.parse_args()).run())
    for words in unexpected[:10]:
        print(f"unexpected: {words}")
    sys.exit(f"{len(unexpected)} unexpected things" if unexpected else 0)


if __name__ == "__main__":
    main()
