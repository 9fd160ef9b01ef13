"""Compares texts of a loaded server with those of the same requests alone.

    python3 scripts/same_text_test.py --url http://127.0.0.1:8080 [--api-key KEY] [--streams 16] [--seconds 30] [--requests 32] [--context 1024]

First every request runs alone, then many clients send the same requests in random mixes, some of which end
early. Requests share prefixes, have one token or several hundred, and are greedy or sampled with a seed; some
ask for log-probabilities, which must have the same digits. Fails if a text, or the beginning of one that was
ended early, differs. For `tern serve` on the CPU, and on a GPU with --reproducible. Needs nothing but Python.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

WORDS = "once upon a time there was little dog who wanted to find the big red ball in her garden by old tree".split()
TIMEOUT = 300


def requests(count, context, rng):
    """Bodies of requests for completions, each for less than half of the
    context; a word has about one token."""
    some, most = context // 16, context // 4
    shared = " ".join(rng.choices(WORDS, k=some))
    for _ in range(count):
        own = " ".join(rng.choices(WORDS, k=rng.choice([1, 7, some, 2 * some, most])))
        body = {
            "prompt": f"{shared} {own}" if rng.random() < 0.5 else own,
            "max_tokens": rng.choice([1, 5, some, some, 2 * some]),
            "temperature": rng.choice([0, 0, 0.8, 1.2]),
            "seed": rng.randrange(1000),
            "ignore_eos": True,
            "stream": True,
        }
        if rng.random() < 0.2:
            body["logprobs"] = 3
        yield body


class Client:
    def __init__(self, url, key):
        self.address = urllib.parse.urlsplit(url)
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def pieces(self, body, until=None):
        """What the server sends, text and log-probabilities; of the first `until` pieces, if given."""
        connection = http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=TIMEOUT)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), self.headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {answer.read()[:300]}")
            text, logprobs, count = "", [], 0
            for line in answer:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"])
                for choice in event["choices"]:
                    text += choice["text"]
                    if choice.get("logprobs"):
                        logprobs += choice["logprobs"]["token_logprobs"]
                count += 1
                if until is not None and count >= until:
                    break
            return text, logprobs
        finally:
            connection.close()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url", required=True)
    options.add_argument("--api-key", default="none")
    options.add_argument("--streams", type=int, default=16)
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--requests", type=int, default=32)
    options.add_argument("--context", type=int, default=1024, help="tokens that a request may have, or fewer")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    client, rng = Client(args.url, args.api_key), random.Random(args.seed)
    bodies = list(requests(args.requests, args.context, rng))
    alone = [client.pieces(body) for body in bodies]
    end, lock = time.monotonic() + args.seconds, threading.Lock()
    done, early, problems = 0, 0, []

    def mix(seed):
        nonlocal done, early
        rng = random.Random(seed)
        while time.monotonic() < end and len(problems) < 20:
            i = rng.randrange(len(bodies))
            until = rng.randrange(1, 20) if rng.random() < 0.15 else None
            try:
                text, logprobs = client.pieces(bodies[i], until)
            except Exception as error:
                with lock:
                    problems.append(f"request {i}: {type(error).__name__}: {error}")
                continue
            want = (alone[i][0][: len(text)], alone[i][1][: len(logprobs)]) if until else alone[i]
            with lock:
                done, early = done + 1, early + (until is not None)
                if (text, logprobs) != want:
                    problems.append(f"request {i}, {bodies[i]['max_tokens']} tokens: {text[:80]!r} instead of {want[0][:80]!r}")

    threads = [threading.Thread(target=mix, args=(f"{args.seed} {n}",)) for n in range(args.streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{done} requests of {args.streams} clients, {early} of them ended early, {len(problems)} differ or failed")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if problems or not done else 0)


if __name__ == "__main__":
    main()
