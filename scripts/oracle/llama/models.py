#!/usr/bin/env python3
"""Records llama.cpp's results for a GGUF file: logits, perplexity, and speed on this machine.

    models.py record                                every fixture of the table below, into fixtures/llama/
    models.py record --only smollm2 --exact         one of them with exact arithmetic, into smollm2-exact.json
    models.py record MODEL.gguf --name NAME         one more model, into fixtures/llama/NAME.json
    models.py adapter MODEL.gguf ADAPTER.gguf       a random adapter, for `record --lora`
    models.py embed MODEL.gguf ...                  vectors or scores of encoders, with f32 weights, into fixtures/embeddings/
    models.py judge MODEL.gguf                      scores of Qwen3-Reranker from its logits, into fixtures/embeddings/
    models.py perplexity MODEL TEXT --ctx N --chunks K
    models.py bench MODEL -p 128 -n 128 -t 2

Every verb takes --lib DIR (the folder with libllama*.so; default $TERN_LLAMA_LIB) and --backend (a CPU build
of ggml). `record` uses the haswell build, which any x86-64 machine of the last ten years can repeat, with an
f16 KV cache and flash attention off. With --exact the same weights are first written out as f32 and the KV
cache is f32 too, so that nothing is rounded to 8 bits: what the file means, rather than what a fast kernel
makes of it. `perplexity` and `bench` use the build that ggml scores best here, as llama.cpp's tools do.

A fixture is one JSON object, laid out with one position a line:

    model      file name of the GGUF
    sha256     of that file
    oracle     package, version, backend, weights (`file` or `f32`), kv, flash, threads: what was asked and how
    n_vocab    length of a row of logits
    add_bos    whether the first id of every list is the model's BOS
    texts      [{name, text, tokens, next, top}]
        tokens     ids of the whole text, as llama.cpp tokenises it: BOS if the model says so, control tokens not read
        next       log-probability of tokens[i + 1] after tokens[..=i]; one fewer than tokens
        top        [[ids], [log-probabilities]] after tokens[..=i], best first, for the first `--positions` positions;
                   natural log-softmax over the whole vocabulary, rounded to 4 decimals
    lora       [{file, scale}]: the adapters that were used, if any
    greedy     [{name, prompt, tokens, ids, gaps, text}]
        tokens     ids of the prompt; control tokens written in it are read
        ids        the best token of each step, ended early by an end-of-generation token (which is kept)
        gaps       best logit minus the second best at each step: a small gap may be decided otherwise by rounding
        text       the ids as text
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libllama import BEST, FLASH, GGML_TYPE, Library, Model, log_softmax
from texts import CHATML, PROMPTS, TEXTS

REPOSITORY = Path(__file__).resolve().parents[3]
FIXTURES = REPOSITORY / "fixtures" / "llama"
FILE_LIMIT = 150_000
PORTABLE = "haswell"
POSITIONS = {"file": 80, "f32": 30}


@dataclass(frozen=True)
class Fixture:
    name: str
    path: str  # below the repository if it begins with crates/, else below the test data
    prompts: dict[str, str]


RECORDED = (
    Fixture("stories-1bit", "crates/tern/models/tern-stories-1bit.gguf", PROMPTS),
    Fixture("stories-ternary", "tern-stories-ternary.gguf", PROMPTS),
    Fixture("smollm2", "smollm2-135m-instruct-q4_1.gguf", PROMPTS | {"chat": CHATML}),
    Fixture("gemma-3-270m", "gemma-3-270m-q4_k_m.gguf", PROMPTS),
)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def read_text(model: Model, name: str, text: str, positions: int, top: int) -> dict:
    """Teacher-forced: the text is one batch, and every position has logits."""
    tokens = model.tokenize(text)
    model.clear()
    model.feed(tokens, outputs_from=0)
    logp = log_softmax(model.logits(len(tokens)))  # [tokens, vocab]
    best = np.argsort(-logp[:positions], axis=1, kind="stable")[:, :top]  # [positions, top]
    return {
        "name": name,
        "text": text,
        "tokens": tokens,
        "next": [round(float(logp[i, t]), 4) for i, t in enumerate(tokens[1:])],
        "top": [[ids.tolist(), [round(float(row[i]), 4) for i in ids]] for ids, row in zip(best, logp)],
    }


def continue_greedily(model: Model, name: str, prompt: str, steps: int) -> dict:
    tokens = model.tokenize(prompt, special=True)
    model.clear()
    model.feed(tokens)
    ids: list[int] = []
    gaps: list[float] = []
    while True:
        row = model.logits()[0]  # [vocab]
        second, first = np.partition(row, -2)[-2:]
        ids.append(int(row.argmax()))
        gaps.append(round(float(first - second), 4))
        if len(ids) == steps or model.ends(ids[-1]):
            break
        model.feed(ids[-1:])
    return {"name": name, "prompt": prompt, "tokens": tokens, "ids": ids, "gaps": gaps, "text": model.detokenize(ids)}


def laid_out(fixture: dict) -> str:
    """JSON with one position per line: small, with readable diffs."""
    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def fields(value: dict) -> str:
        return ",\n".join(f"{dump(k)}:{rows(v) if k in ('texts', 'greedy', 'top') else dump(v)}" for k, v in value.items())

    def rows(values: list) -> str:
        return "[\n" + ",\n".join("{" + fields(v) + "}" if isinstance(v, dict) else dump(v) for v in values) + "\n]"

    return "{" + fields(fixture) + "}\n"


def record_one(library: Library, path: Path, name: str, prompts: dict[str, str], args: argparse.Namespace) -> None:
    weights, kv = ("f32", "f32") if args.exact else ("file", args.kv)
    positions = args.positions or POSITIONS[weights]
    with tempfile.TemporaryDirectory() as scratch:
        read = path
        if args.exact:
            name, read = name + "-exact", Path(scratch) / path.name
            library.dequantize(path, read)
        model = Model(library, read, n_ctx=args.ctx, threads=args.threads, kv=kv, flash=args.flash)
    if args.lora:
        model.adapt(args.lora)
    fixture = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "oracle": {"package": library.package, "version": library.version, "backend": library.backend,
                   "weights": weights, "kv": kv, "flash": args.flash, "threads": args.threads},
        "n_vocab": model.n_vocab,
        "add_bos": model.add_bos,
        "texts": [read_text(model, text, TEXTS[text], positions, args.top) for text in args.texts],
        "greedy": [continue_greedily(model, prompt, prompts[prompt], args.steps) for prompt in prompts],
    }
    if args.lora:
        fixture["lora"] = [{"file": path.name, "scale": scale} for path, scale in args.lora]
    model.close()
    written = laid_out(fixture)
    json.loads(written)
    size = len(written.encode())
    if size > args.limit:
        raise SystemExit(f"{name}: the fixture would be {size:,} bytes, {args.limit:,} is the limit: give --positions or --texts")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(written)
    lengths = ", ".join(f"{text['name']} {len(text['tokens'])}" for text in fixture["texts"])
    say(f"{name}: {size:,} bytes; tokens: {lengths}; backend {library.backend}")
    for greedy in fixture["greedy"]:
        say(f"  {greedy['prompt']!r} -> {greedy['text']!r} (smallest gap {min(greedy['gaps'])})")


def record(args: argparse.Namespace) -> None:
    library = Library(args.lib, args.backend or PORTABLE)
    if args.model:
        record_one(library, args.model, args.name or args.model.stem, PROMPTS, args)
        return
    data = Path(os.environ.get("TERN_TEST_DATA") or Path.home() / ".cache" / "tern-test-data")
    for entry in RECORDED:
        if args.only not in (None, entry.name):
            continue
        path = (REPOSITORY if entry.path.startswith("crates/") else data) / entry.path
        if not path.exists():
            say(f"{entry.name}: no {path}: skipped (run scripts/fetch_test_data.py)")
            continue
        record_one(library, path, entry.name, entry.prompts, args)


def scaled(text: str) -> tuple[Path, float]:
    path, _, scale = text.partition(":")
    return Path(path), float(scale or 1)


def adapter(args: argparse.Namespace) -> None:
    """Writes a random adapter for the linears of the first layers of a GGUF file. Needs the gguf package."""
    import gguf

    reader = gguf.GGUFReader(args.model)
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    writer = gguf.GGUFWriter(args.target, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", args.alpha)
    random = np.random.default_rng(args.seed)
    for tensor in reader.tensors:
        cols, *rows = (int(n) for n in tensor.shape)
        layer = tensor.name.split(".")[1] if tensor.name.startswith("blk.") else ""
        if len(rows) != 1 or not tensor.name.endswith(".weight") or not layer.isdigit() or int(layer) >= args.layers:
            continue
        for half, shape in (("lora_a", (args.rank, cols)), ("lora_b", (rows[0], args.rank))):
            values = random.standard_normal(shape) / np.sqrt(shape[1])
            writer.add_tensor(f"{tensor.name}.{half}", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def embed(args: argparse.Namespace) -> None:
    """Vectors of texts of random tokens, one shorter than a page and one
    longer than the windows of tiny models.

    A fixture has model, sha256, oracle, and texts: [{tokens, vector}]; a vector is what the file's pooling
    gives, not normalised, or the scores of a classifier. Weights are f32 and nothing is rounded to 8 bits.
    """
    library = Library(args.lib, args.backend or PORTABLE)
    for path in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            read = Path(scratch) / path.name
            library.dequantize(path, read)
            model = Model(library, read, n_ctx=256, threads=args.threads, kv="f32", flash=args.flash, embeddings=True)
        rng = random.Random(0)
        texts = [[rng.randrange(model.n_vocab) for _ in range(length)] for length in (7, 45)]
        fixture = {
            "model": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "oracle": {"package": library.package, "version": library.version, "backend": library.backend, "flash": args.flash},
            "texts": [{"tokens": tokens, "vector": [float(f"{x:.6g}") for x in model.embed(tokens).ravel().tolist()]} for tokens in texts],
        }
        model.close()
        args.out.mkdir(parents=True, exist_ok=True)
        written = laid_out(fixture)
        (args.out / f"{path.stem}.json").write_text(written)
        say(f"{path.stem}: {len(written):,} bytes; {fixture['texts'][1]['vector'][:4]}")


JUDGE = (  # as the page of Qwen3-Reranker writes it
    '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. '
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {}\n<Document>: {}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
JUDGED = ("how do birds fly?", ("Wings lift them.", "Ships float.", "Birds fly by flapping their wings in the air.", "No."))


def judge(args: argparse.Namespace) -> None:
    """The probability of `yes` against `no` after the template of
    Qwen3-Reranker, for a file without a classifier.

    A fixture has model, sha256, oracle, query, and documents: [{text, tokens, score}]. Weights are f32 and
    nothing is rounded to 8 bits.
    """
    library = Library(args.lib, args.backend or PORTABLE)
    with tempfile.TemporaryDirectory() as scratch:
        read = Path(scratch) / args.model.name
        library.dequantize(args.model, read)
        model = Model(library, read, n_ctx=256, threads=args.threads, kv="f32", flash=args.flash)
    yes, no = (model.tokenize(word)[-1] for word in ("yes", "no"))
    query, documents = JUDGED
    scored = []
    for document in documents:
        tokens = model.tokenize(JUDGE.format(query, document), special=True)
        model.clear()
        model.feed(tokens)
        logits = model.logits()[0]
        score = 1 / (1 + math.exp(float(logits[no]) - float(logits[yes])))
        scored.append({"text": document, "tokens": len(tokens), "score": float(f"{score:.6g}")})
    fixture = {
        "model": args.model.name,
        "sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "oracle": {"package": library.package, "version": library.version, "backend": library.backend, "flash": args.flash},
        "query": query,
        "documents": scored,
    }
    (args.out / f"judge-{args.model.stem}.json").write_text(laid_out(fixture))
    say(f"{args.model.stem}: {scored}")


def perplexity(args: argparse.Namespace) -> None:
    """Perplexity as llama.cpp's `llama-perplexity` defines it.

    1. The text (one trailing newline dropped) is tokenised once, whole, with what the model adds (BOS once,
       in front); control tokens written in the text stay text.
    2. The ids are cut into chunks of `ctx`; what is left over at the end is not scored. There must be at
       least 2 * ctx ids.
    3. Each chunk is evaluated separately, from an empty cache, positions 0..ctx. If the model adds BOS, the
       chunk's first id is replaced by BOS for the evaluation.
    4. Only the second half is scored: the logits at positions ctx/2 .. ctx-2 predict the ids at
       ctx/2+1 .. ctx-1, so each chunk scores ctx - ctx/2 - 1 ids (255 of 512).
    5. PPL = exp(mean of -log p over all scored ids of all chunks); the error is
       PPL * sqrt((mean of squares - square of mean) / (count - 1)).
    """
    model = Model(Library(args.lib, args.backend or BEST), args.model, n_ctx=args.ctx, threads=args.threads, kv=args.kv, flash=args.flash)
    if model.add_eos:
        raise SystemExit(f"{args.model}: llama-perplexity refuses models that add an end token")
    tokens = model.tokenize(args.text.read_bytes().decode().removesuffix("\n"))
    if len(tokens) < 2 * args.ctx:
        raise SystemExit(f"{args.text}: {len(tokens)} tokens, perplexity at {args.ctx} needs {2 * args.ctx}")
    chunks = min(args.chunks or len(tokens), len(tokens) // args.ctx)
    first = args.ctx // 2
    scored: list[float] = []
    for number in range(chunks):
        chunk = tokens[number * args.ctx:(number + 1) * args.ctx]
        if model.add_bos:
            chunk[0] = model.bos
        model.clear()
        model.feed(chunk, outputs_from=first)
        logp = log_softmax(model.logits(args.ctx - first)[:-1])  # [ctx - first - 1, vocab]
        scored.extend(-logp[np.arange(len(logp)), chunk[first + 1:]])
        say(f"[{number + 1}/{chunks}] {math.exp(statistics.fmean(scored)):.4f}")
    mean = statistics.fmean(scored)
    spread = math.sqrt((statistics.fmean(x * x for x in scored) - mean * mean) / (len(scored) - 1))
    print(f"{args.model.name} on {args.text.name}, context {args.ctx}, {chunks} chunks, {len(scored)} of {len(tokens)} tokens scored: "
          f"PPL = {math.exp(mean):.4f} +/- {math.exp(mean) * spread:.5f}")


def bench(args: argparse.Namespace) -> None:
    """Timed as `llama-bench` does: random tokens, nothing sampled, one warm-up, an
    empty cache before each repetition."""
    library = Library(args.lib, args.backend or BEST)
    model = Model(library, args.model, n_ctx=args.prompt + args.gen, threads=args.threads, kv=args.kv, flash=args.flash)
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        ids = [rng.randrange(model.n_vocab) for _ in range(count)]
        return [model.bos] + ids[1:] if model.add_bos and ids else ids

    def prompt() -> None:
        model.feed(tokens(args.prompt))
        model.sync()

    def decode() -> None:
        for token in tokens(args.gen):
            model.feed([token])
            model.sync()

    print(f"{args.model.name}: {library.version}, backend {library.backend}, {args.threads} threads, flash {args.flash}, kv {args.kv}")
    for label, count, work in (("prompt", args.prompt, prompt), ("decode", args.gen, decode)):
        speeds = []
        for repetition in range(args.reps + 1) if count else ():
            model.clear()
            begun = time.perf_counter()
            work()
            if repetition:  # the first only warms up
                speeds.append(count / (time.perf_counter() - begun))
        if speeds:
            spread = statistics.stdev(speeds) if len(speeds) > 1 else 0.0
            print(f"{label} {count:>5}: {statistics.fmean(speeds):9.2f} +/- {spread:.2f} tok/s, best {max(speeds):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, run, flash: str, help: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help, description=run.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        sub.set_defaults(run=run)
        sub.add_argument("--lib", type=Path, default=os.environ.get("TERN_LLAMA_LIB"), help="folder of libllama*.so")
        sub.add_argument("--backend", help="CPU build of ggml: best, haswell, skylakex, sapphirerapids, zen4, ...")
        sub.add_argument("--kv", choices=GGML_TYPE, default="f16", help="type of the KV cache")
        sub.add_argument("--flash", choices=FLASH, default=flash, help=f"flash attention (default {flash})")
        sub.add_argument("-t", "--threads", type=int, default=2)
        return sub

    sub = verb("record", record, "off", "write fixtures of top log-probabilities and greedy continuations")
    sub.add_argument("model", nargs="?", type=Path, help="a GGUF; without it, every model of the table")
    sub.add_argument("--name", help="the fixture's name (default: the file's stem)")
    sub.add_argument("--exact", action="store_true", help="f32 weights and KV cache; the fixture is called NAME-exact")
    sub.add_argument("--only", metavar="NAME", help="of the table, only this model")
    sub.add_argument("--out", type=Path, default=FIXTURES, help="folder to write into")
    sub.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="which texts (default all)")
    sub.add_argument("--positions", type=int, help=f"how many of a text's positions get their top log-probabilities (default {POSITIONS['file']}, exact {POSITIONS['f32']})")
    sub.add_argument("--top", type=int, default=40, help="log-probabilities per position")
    sub.add_argument("--steps", type=int, default=32, help="greedy steps")
    sub.add_argument("--ctx", type=int, default=256)
    sub.add_argument("--lora", metavar="FILE[:SCALE]", type=scaled, action="append", help="an adapter to use; may be repeated")
    sub.add_argument("--limit", type=int, default=FILE_LIMIT, help="refuse to write a larger file")

    sub = verb("adapter", adapter, "off", "write a random adapter (LoRA)")
    sub.add_argument("model", type=Path)
    sub.add_argument("target", type=Path)
    sub.add_argument("--rank", type=int, default=2)
    sub.add_argument("--alpha", type=float, default=3)
    sub.add_argument("--layers", type=int, default=1, help="only the first LAYERS")
    sub.add_argument("--seed", type=int, default=1)

    sub = verb("embed", embed, "off", "write fixtures of embeddings and scores")
    sub.add_argument("models", nargs="+", type=Path)
    sub.add_argument("--out", type=Path, default=REPOSITORY / "fixtures" / "embeddings", help="folder to write into")

    sub = verb("judge", judge, "off", "write a fixture of the scores of a reranker without a classifier")
    sub.add_argument("model", type=Path)
    sub.add_argument("--out", type=Path, default=REPOSITORY / "fixtures" / "embeddings", help="folder to write into")

    sub = verb("perplexity", perplexity, "auto", "score a text as llama-perplexity does")
    sub.add_argument("model", type=Path)
    sub.add_argument("text", type=Path)
    sub.add_argument("--ctx", type=int, default=512)
    sub.add_argument("--chunks", type=int, default=0, help="only the first CHUNKS (default all)")

    sub = verb("bench", bench, "auto", "time prompt and decode as llama-bench does")
    sub.add_argument("model", type=Path)
    sub.add_argument("-p", "--prompt", type=int, default=128)
    sub.add_argument("-n", "--gen", type=int, default=128)
    sub.add_argument("-r", "--reps", type=int, default=5)

    args = parser.parse_args()
    if args.lib is None:
        parser.error("missing path of libllama: --lib DIR or TERN_LLAMA_LIB (see scripts/oracle/README.md)")
    args.run(args)


if __name__ == "__main__":
    main()
