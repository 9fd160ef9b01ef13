#!/usr/bin/env python3
"""Importance matrices of llama.cpp: what `llama-imatrix` sums, through the library's
callback for each node of its graph.

    imatrix.py measure MODEL TEXT OUT.gguf --ctx 512 --chunks 20      a file as llama-imatrix writes it
    imatrix.py record MODEL... --ctx 32                               fixtures/imatrix/NAME.json, with f32 weights and an f32 KV cache
    imatrix.py quantize MODEL OUT.gguf --to Q4_K_M --imatrix FILE     llama-quantize with an importance matrix

All take --lib DIR (default $TERN_LLAMA_LIB) and --backend (a CPU build of ggml); `gguf` and `numpy` are
required. A fixture has, for each tensor, the rows that were added to each matrix, the sum of squares over all
columns of each matrix, and the sums of some columns of the first matrix that was used.
"""
from __future__ import annotations

import argparse
import ctypes as C
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter
from libllama import BEST, FLASH, GGML_TYPE, Library, Model
from texts import TEXTS

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "imatrix"
EVERY = 7  # columns of a fixture


class Tensor(C.Structure):
    """ggml_tensor, up to its name."""


Tensor._fields_ = [
    ("type", C.c_int32),
    ("buffer", C.c_void_p),
    ("ne", C.c_int64 * 4),
    ("nb", C.c_size_t * 4),
    ("op", C.c_int32),
    ("op_params", C.c_int32 * 16),
    ("flags", C.c_int32),
    ("src", C.POINTER(Tensor) * 10),
    ("view_src", C.c_void_p),
    ("view_offs", C.c_size_t),
    ("data", C.c_void_p),
    ("name", C.c_char * 64),
]

EvalCallback = C.CFUNCTYPE(C.c_bool, C.POINTER(Tensor), C.c_bool, C.c_void_p)


class ImatrixData(C.Structure):
    _fields_ = [("name", C.c_char_p), ("data", C.POINTER(C.c_float)), ("size", C.c_size_t)]


def array(tensor: Tensor, dtype) -> np.ndarray:
    """A tensor in memory, slowest dimension first."""
    length = sum((n - 1) * stride for n, stride in zip(tensor.ne, tensor.nb)) + tensor.nb[0]
    raw = (C.c_char * length).from_address(tensor.data)
    return np.ndarray(tuple(reversed(tensor.ne)), dtype, raw, strides=tuple(reversed(tensor.nb)))


class Collector:
    """Sums of squares per tensor, as IMatrixCollector of llama-imatrix has them."""

    def __init__(self, library: Library):
        base = C.CDLL(str(library.folder / "libggml-base.so"))
        base.ggml_op_name.restype = C.c_char_p
        self.op_name = lambda op: base.ggml_op_name(op).decode()
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, np.ndarray] = {}
        self.failure: Exception | None = None
        self.callback = EvalCallback(self.observe)

    def observe(self, pointer, ask, _):
        try:
            return self.node(pointer.contents, ask)
        except Exception as failure:  # a callback cannot raise
            self.failure = failure
            return False

    def node(self, node: Tensor, ask: bool) -> bool:
        op = self.op_name(node.op)
        if op not in ("MUL_MAT", "MUL_MAT_ID"):
            return False
        weight, x = node.src[0].contents, node.src[1].contents
        name = weight.name.decode()
        if not name.startswith("blk.") or x.type != 0:
            return False
        if ask:
            return True
        values = array(x, np.float32).astype(np.float64)
        matrices = weight.ne[2] * weight.ne[3]
        sums = self.sums.setdefault(name, np.zeros((matrices, weight.ne[0])))
        counts = self.counts.setdefault(name, np.zeros(matrices))
        if op == "MUL_MAT_ID":
            ids = array(node.src[2].contents, np.int32)[0, 0]  # [tokens, used]
            values = values[0]  # [tokens, used or 1, columns]
            for token, chosen in enumerate(ids):
                for slot, expert in enumerate(chosen):
                    sums[expert] += values[token, slot % values.shape[1]] ** 2
                    counts[expert] += 1
        elif matrices == 1:
            rows = values.reshape(-1, weight.ne[0])
            sums[0] += (rows**2).sum(axis=0)
            counts[0] += len(rows)
        else:
            for i in range(values.shape[1]):
                sums[i % matrices] += (values[0, i] ** 2).sum(axis=0)
                counts[i % matrices] += values.shape[2]
        return True


class ObservedModel(Model):
    def __init__(self, library: Library, path: Path, collector: Collector, *, n_ctx: int, kv: str):
        self.c = library.c
        self.model = self.c.llama_model_load_from_file(str(path).encode(), self.c.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp refuses it")
        self.vocab = self.c.llama_model_get_vocab(self.model)
        self.bos, self.add_bos = self.c.llama_vocab_bos(self.vocab), self.c.llama_vocab_get_add_bos(self.vocab)
        params = self.c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = 2
        params.type_k = params.type_v = GGML_TYPE[kv]
        params.flash_attn_type = FLASH["off"]
        params.cb_eval = C.cast(collector.callback, C.c_void_p)
        params.n_outputs_max_per_seq = 0  # no limit: the last layer must compute all rows, as llama-imatrix asks for
        self.context = self.c.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"{path}: no context of {n_ctx}")


def measure(library: Library, path: Path, text: str, *, n_ctx: int, chunks: int | None, kv: str) -> tuple[Collector, int]:
    collector = Collector(library)
    model = ObservedModel(library, path, collector, n_ctx=n_ctx, kv=kv)
    tokens = model.tokenize(text)
    count = min(len(tokens) // n_ctx, chunks or len(tokens))
    for i in range(count):
        chunk = tokens[i * n_ctx : (i + 1) * n_ctx]
        if model.add_bos:
            chunk[0] = model.bos
        model.clear()
        model.feed(chunk, outputs_from=0)
        model.sync()
        if collector.failure:
            raise collector.failure
    model.close()
    return collector, count


def write(collector: Collector, path: Path, dataset: str, chunks: int, n_ctx: int) -> None:
    writer = GGUFWriter(path, arch="")
    writer.kv_data[0].pop("general.architecture", None)
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", [dataset])
    writer.add_uint32("imatrix.chunk_count", chunks)
    writer.add_uint32("imatrix.chunk_size", n_ctx)
    for name, sums in collector.sums.items():
        writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
        writer.add_tensor(f"{name}.counts", collector.counts[name].astype(np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def record(library: Library, path: Path, n_ctx: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "f32.gguf"
        library.dequantize(path, exact)
        text = TEXTS["story"]
        collector, chunks = measure(library, exact, text, n_ctx=n_ctx, chunks=None, kv="f32")
    tensors = {}
    for name, sums in collector.sums.items():
        used = int(np.argmax(collector.counts[name] > 0))
        columns = [float(f"{x:.6g}") for x in sums[used][::EVERY]]
        totals = [float(f"{x:.6g}") for x in sums.sum(axis=1)]
        tensors[name] = {"counts": [int(n) for n in collector.counts[name]], "totals": totals, "matrix": used, "columns": columns}
    described = {"model": path.name, "oracle": f"{library.package} {library.backend}", "ctx": n_ctx, "chunks": chunks, "every": EVERY, "text": text}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in tensors.items())
    FIXTURES.mkdir(parents=True, exist_ok=True)
    target = FIXTURES / f"{path.stem}.json"
    target.write_text(json.dumps(described)[:-1] + ', "tensors": {\n' + rows + "\n}}\n")
    print(target, len(tensors), "tensors,", chunks, "chunks")


def importance(path: Path) -> dict[str, np.ndarray]:
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
    found = {}
    for name in (name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")):
        counts = tensors[f"{name}.counts"].reshape(-1, 1)
        sums = tensors[f"{name}.in_sum2"].reshape(len(counts), -1)
        found[name] = np.where(counts > 0, sums / np.maximum(counts, 1), 1).astype(np.float32).reshape(-1)
    return found


def quantize(library: Library, source: Path, target: Path, file_type: int, imatrix: Path | None, threads: int = 2) -> None:
    params = library.c.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = file_type, True, threads
    values = importance(imatrix) if imatrix else {}
    if values:
        entries = [ImatrixData(name.encode(), v.ctypes.data_as(C.POINTER(C.c_float)), v.size) for name, v in values.items()]
        entries = (ImatrixData * (len(entries) + 1))(*entries, ImatrixData(None, None, 0))
        params.imatrix = C.cast(entries, C.c_void_p)
    if library.c.llama_model_quantize(str(source).encode(), str(target).encode(), C.byref(params)) != 0:
        raise SystemExit("".join(library.log[-5:]))


def main() -> None:
    from tensor_formats import RECIPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", type=Path, default=os.environ.get("TERN_LLAMA_LIB"))
    parser.add_argument("--backend", default=None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("measure")
    verb.add_argument("model", type=Path)
    verb.add_argument("text", type=Path)
    verb.add_argument("out", type=Path)
    verb.add_argument("--ctx", type=int, default=512)
    verb.add_argument("--chunks", type=int)
    verb.add_argument("--kv", default="f16")
    verb = verbs.add_parser("record")
    verb.add_argument("models", type=Path, nargs="+")
    verb.add_argument("--ctx", type=int, default=32)
    verb = verbs.add_parser("quantize")
    verb.add_argument("model", type=Path)
    verb.add_argument("out", type=Path)
    verb.add_argument("--to", required=True, choices=RECIPES)
    verb.add_argument("--imatrix", type=Path)
    args = parser.parse_args()
    library = Library(Path(args.lib), args.backend or ("haswell" if args.verb == "record" else BEST))
    if args.verb == "measure":
        text = args.text.read_text()
        collector, chunks = measure(library, args.model, text, n_ctx=args.ctx, chunks=args.chunks, kv=args.kv)
        write(collector, args.out, args.text.name, chunks, args.ctx)
    elif args.verb == "record":
        for path in args.models:
            record(library, path, args.ctx)
    else:
        quantize(library, args.model, args.out, RECIPES[args.to], args.imatrix)


if __name__ == "__main__":
    main()
