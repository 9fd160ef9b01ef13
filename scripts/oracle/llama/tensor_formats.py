#!/usr/bin/env python3
"""Records which format llama.cpp gives each tensor of a quantized model, and the SHA-256 of all their bytes.

Use:  oracle/bin/python scripts/oracle/llama/tensor_formats.py TEST_DATA --lib DIR > crates/tern/tests/quantized.json

TEST_DATA is the folder of scripts/fetch_test_data.py. The models are quantized already, so llama.cpp decodes them first, as
`tern quantize` does. Tensors are listed in the order of the file, as runs of one format. Names that end in `+imatrix` are quantized with an
importance of columns that a formula gives: the test has the same.
"""
import argparse
import ctypes as C
import hashlib
import itertools
import json
import os
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from libllama import Library

RECIPES = {
    "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q4_K_M": 15, "Q4_K_S": 14, "Q4_0": 2, "IQ4_XS": 30, "Q3_K_L": 13, "Q3_K_M": 12, "Q2_K": 10,
    "TQ2_0": 37,
}
IMATRIX = "+imatrix"
# rows of 640 weights, as in Gemma, are no whole blocks of 256: most tensors get formats that replace others
MODELS = {
    "smollm2-135m-instruct-q4_1.gguf": [
        *RECIPES, *(name + IMATRIX for name in ["Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_XS", "Q3_K_M", "Q2_K"]),
    ],
    "gemma-3-270m-q4_k_m.gguf": ["Q4_K_M", *(name + IMATRIX for name in ["Q6_K", "Q5_K_M", "IQ4_XS", "Q3_K_M", "Q2_K"])],
}


class Importance(C.Structure):
    _fields_ = [("name", C.c_char_p), ("data", C.POINTER(C.c_float)), ("size", C.c_size_t)]


def importance(source):
    """0.25 to 1.25, exact in f32, for every column of the layers' matrices."""
    matrices = [t for t in GGUFReader(source).tensors if t.name.startswith("blk.") and len(t.shape) > 1]
    values = [((np.arange(int(t.shape[0])) * 40503 & 0xFFFF) / 65536 + 0.25).astype(np.float32) for t in matrices]
    entries = [Importance(t.name.encode(), v.ctypes.data_as(C.POINTER(C.c_float)), v.size) for t, v in zip(matrices, values)]
    return (Importance * (len(entries) + 1))(*entries, Importance(None, None, 0)), values


def quantized(library, source, name):
    recipe = name.removesuffix(IMATRIX)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "quantized.gguf"
        params = library.c.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = RECIPES[recipe], True
        entries, _kept = importance(source)
        if name != recipe:
            params.imatrix = C.cast(entries, C.c_void_p)
        if library.c.llama_model_quantize(str(source).encode(), str(target).encode(), C.byref(params)) != 0:
            raise SystemExit("".join(library.log[-5:]))
        tensors = GGUFReader(target).tensors
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.data.tobytes())
        runs = itertools.groupby(tensors, lambda tensor: tensor.tensor_type.name)
        return {"formats": [[name, len(list(run))] for name, run in runs], "sha256": digest.hexdigest()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--lib", type=Path, default=os.environ.get("TERN_LLAMA_LIB"))
    args = parser.parse_args()
    library = Library(Path(args.lib), "haswell")
    models = []
    for model, names in MODELS.items():
        rows = [f'  "{name}": {json.dumps(quantized(library, args.data / model, name))}' for name in names]
        models.append(f' "{model}": {{\n' + ",\n".join(rows) + "\n }")
    print("{\n" + ",\n".join(models) + "\n}")


if __name__ == "__main__":
    main()
