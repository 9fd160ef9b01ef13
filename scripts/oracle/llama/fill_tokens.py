#!/usr/bin/env python3
"""Records which tokens llama.cpp takes for fill-in-the-middle, in small vocabularies
with the markers of several models.

    oracle/bin/pip install gguf
    oracle/bin/python scripts/oracle/llama/fill_tokens.py > crates/text/tests/fill.json

TERN_LLAMA_LIB is the folder with libllama*.so, see ../README.md. A case is one JSON object:

    tokens   what the vocabulary has after the 256 bytes, all control tokens
    keys     keys of the file, with the index of a token in `tokens`
    fill     the index in `tokens` of each marker that llama.cpp found: pre, suf, mid, pad, rep, sep
    ends     the indices of those that end a text
"""

import ctypes as C
import json
import os
import tempfile
from pathlib import Path

import gguf

from libllama import Library

MARKERS = ["pre", "suf", "mid", "pad", "rep", "sep"]
QWEN = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
CASES = [
    (QWEN, {}),
    (["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<reponame>"], {}),
    (["<|endoftext|>", "<fim-prefix>", "<fim-middle>", "<fim-suffix>", "<fim-pad>"], {}),
    (["</s>", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"], {}),
    (["<PRE>", "<MID>", "<SUF>", "<PAD>", "<REPO>"], {}),
    (["<｜end▁of▁sentence｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"], {}),
    (["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"], {}),
    (["<eos>", "a_one", "a_two", "a_three", "a_four"], {"fim_pre": 3, "fim_suf": 1, "fim_mid": 2, "fim_sep": 4}),
    (["<eos>", "a_one", "a_two", "a_three"], {"prefix": 1, "suffix": 2, "middle": 3}),
    (QWEN, {"fim_pre": 3, "fim_suf": 1}),
    (["<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>"], {}),
]


def byte_tokens():
    """The characters that stand for bytes in such vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(c) for c in printable] + [chr(256 + i) for i in range(68)]


def write(path, tokens, keys):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    base = byte_tokens()
    writer.add_token_list(base + tokens)
    writer.add_token_types([1] * len(base) + [3] * len(tokens))
    writer.add_token_merges(["a b"])
    for key, at in keys.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", len(base) + at)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    library = Library(Path(os.environ["TERN_LLAMA_LIB"]))
    c = library.c
    cases = []
    for tokens, keys in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "vocabulary.gguf")
            write(path, tokens, keys)
            params = c.llama_model_default_params()
            params.vocab_only = True
            mark = len(library.log)
            model = c.llama_model_load_from_file(str(path).encode(), params)
            if not model:
                raise SystemExit(f"{tokens}: {library.last_words(mark)}")
            vocab = c.llama_model_get_vocab(model)
            first = len(byte_tokens())
            fill = {}
            for marker in MARKERS:
                function = getattr(c, f"llama_vocab_fim_{marker}")
                function.restype, function.argtypes = C.c_int32, [C.c_void_p]
                if (token := function(vocab)) >= 0:
                    fill[marker] = token - first
            ends = [at for at in range(len(tokens)) if c.llama_vocab_is_eog(vocab, first + at)]
            cases.append({"tokens": tokens, "keys": keys, "fill": fill, "ends": ends})
            c.llama_model_free(model)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    print(f'{{"oracle": "{library.package}, {library.version}", "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
