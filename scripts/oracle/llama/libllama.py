"""llama.cpp through ctypes: load a GGUF, tokenise, and read the logits of every position.

The library is the prebuilt one of npm `@node-llama-cpp/linux-x64` 3.22.1 (llama.cpp 0.5.0-dev, ggml
0.25.1). Parameter structs are passed by value, so their layout must be this version's: `Library` checks
the defaults and refuses any other.
"""

from __future__ import annotations

import ctypes as C
import json
import re
from pathlib import Path

import numpy as np

GGML_TYPE = {"f32": 0, "f16": 1}
FLASH = {"auto": -1, "off": 0, "on": 1}
# `best` lets ggml choose the build for this CPU; a name loads only that build
BEST = "best"


class ModelParams(C.Structure):
    _fields_ = [
        ("devices", C.c_void_p),
        ("tensor_buft_overrides", C.c_void_p),
        ("n_gpu_layers", C.c_int32),
        ("split_mode", C.c_int32),
        ("load_mode", C.c_int32),
        ("lazy_mode", C.c_int32),
        ("main_gpu", C.c_int32),
        ("tensor_split", C.c_void_p),
        ("progress_callback", C.c_void_p),
        ("progress_callback_user_data", C.c_void_p),
        ("kv_overrides", C.c_void_p),
        ("vocab_only", C.c_bool),
        ("check_tensors", C.c_bool),
        ("use_extra_bufts", C.c_bool),
        ("no_host", C.c_bool),
        ("no_alloc", C.c_bool),
        ("load_mtp", C.c_bool),
    ]


class ContextParams(C.Structure):
    _fields_ = [
        ("n_ctx", C.c_uint32),
        ("n_batch", C.c_uint32),
        ("n_ubatch", C.c_uint32),
        ("n_seq_max", C.c_uint32),
        ("n_rs_seq", C.c_uint32),
        ("n_outputs_max", C.c_uint32),
        ("n_outputs_max_per_seq", C.c_uint32),
        ("n_threads", C.c_int32),
        ("n_threads_batch", C.c_int32),
        ("ctx_type", C.c_int32),
        ("rope_scaling_type", C.c_int32),
        ("pooling_type", C.c_int32),
        ("attention_type", C.c_int32),
        ("flash_attn_type", C.c_int32),
        ("rope_freq_base", C.c_float),
        ("rope_freq_scale", C.c_float),
        ("yarn_ext_factor", C.c_float),
        ("yarn_attn_factor", C.c_float),
        ("yarn_beta_fast", C.c_float),
        ("yarn_beta_slow", C.c_float),
        ("yarn_orig_ctx", C.c_uint32),
        ("defrag_thold", C.c_float),
        ("cb_eval", C.c_void_p),
        ("cb_eval_user_data", C.c_void_p),
        ("type_k", C.c_int32),
        ("type_v", C.c_int32),
        ("abort_callback", C.c_void_p),
        ("abort_callback_data", C.c_void_p),
        ("embeddings", C.c_bool),
        ("offload_kqv", C.c_bool),
        ("no_perf", C.c_bool),
        ("op_offload", C.c_bool),
        ("swa_full", C.c_bool),
        ("kv_unified", C.c_bool),
        ("samplers", C.c_void_p),
        ("n_samplers", C.c_size_t),
        ("ctx_other", C.c_void_p),
    ]


class QuantizeParams(C.Structure):
    _fields_ = [
        ("nthread", C.c_int32),
        ("ftype", C.c_int32),
        ("output_tensor_type", C.c_int32),
        ("token_embedding_type", C.c_int32),
        ("allow_requantize", C.c_bool),
        ("quantize_output_tensor", C.c_bool),
        ("only_copy", C.c_bool),
        ("pure", C.c_bool),
        ("keep_split", C.c_bool),
        ("dry_run", C.c_bool),
        ("imatrix", C.c_void_p),
        ("kv_overrides", C.c_void_p),
        ("tt_overrides", C.c_void_p),
        ("prune_layers", C.c_void_p),
        ("max_buf_size", C.c_size_t),
    ]


class Batch(C.Structure):
    _fields_ = [
        ("n_tokens", C.c_int32),
        ("token", C.POINTER(C.c_int32)),
        ("embd", C.c_void_p),
        ("pos", C.POINTER(C.c_int32)),
        ("n_seq_id", C.c_void_p),
        ("seq_id", C.c_void_p),
        ("logits", C.POINTER(C.c_int8)),
    ]


LogCallback = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)

SIGNATURES = {
    "llama_version": (C.c_char_p, []),
    "llama_log_set": (None, [LogCallback, C.c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_quantize_default_params": (QuantizeParams, []),
    "llama_model_quantize": (C.c_uint32, [C.c_char_p, C.c_char_p, C.POINTER(QuantizeParams)]),
    "llama_model_load_from_file": (C.c_void_p, [C.c_char_p, ModelParams]),
    "llama_model_free": (None, [C.c_void_p]),
    "llama_model_get_vocab": (C.c_void_p, [C.c_void_p]),
    "llama_model_n_ctx_train": (C.c_int32, [C.c_void_p]),
    "llama_vocab_n_tokens": (C.c_int32, [C.c_void_p]),
    "llama_vocab_bos": (C.c_int32, [C.c_void_p]),
    "llama_vocab_get_add_bos": (C.c_bool, [C.c_void_p]),
    "llama_vocab_get_add_eos": (C.c_bool, [C.c_void_p]),
    "llama_vocab_is_eog": (C.c_bool, [C.c_void_p, C.c_int32]),
    "llama_tokenize": (C.c_int32, [C.c_void_p, C.c_char_p, C.c_int32, C.c_void_p, C.c_int32, C.c_bool, C.c_bool]),
    "llama_detokenize": (C.c_int32, [C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_int32, C.c_bool, C.c_bool]),
    "llama_init_from_model": (C.c_void_p, [C.c_void_p, ContextParams]),
    "llama_free": (None, [C.c_void_p]),
    "llama_get_memory": (C.c_void_p, [C.c_void_p]),
    "llama_memory_clear": (None, [C.c_void_p, C.c_bool]),
    "llama_decode": (C.c_int32, [C.c_void_p, Batch]),
    "llama_synchronize": (None, [C.c_void_p]),
    "llama_get_logits": (C.POINTER(C.c_float), [C.c_void_p]),
    "llama_get_embeddings_seq": (C.POINTER(C.c_float), [C.c_void_p, C.c_int32]),
    "llama_get_embeddings_ith": (C.POINTER(C.c_float), [C.c_void_p, C.c_int32]),
    "llama_pooling_type": (C.c_int32, [C.c_void_p]),
    "llama_model_n_embd_out": (C.c_int32, [C.c_void_p]),
    "llama_model_n_cls_out": (C.c_uint32, [C.c_void_p]),
    "llama_adapter_lora_init": (C.c_void_p, [C.c_void_p, C.c_char_p]),
    "llama_set_adapters_lora": (C.c_int32, [C.c_void_p, C.POINTER(C.c_void_p), C.c_size_t, C.POINTER(C.c_float)]),
}


class Library:
    """The shared objects in one folder, with one CPU build of ggml loaded, and CUDA if the folder has it."""

    def __init__(self, folder: Path, backend: str = BEST):
        self.folder = folder
        base = C.CDLL(str(folder / "libggml-base.so"), mode=C.RTLD_GLOBAL)
        ggml = C.CDLL(str(next(folder.glob("libggml.*v*.so"))), mode=C.RTLD_GLOBAL)
        self.c = C.CDLL(str(next(folder.glob("libllama.*v*.so"))), mode=C.RTLD_GLOBAL)
        for name, (restype, argtypes) in SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = restype, argtypes
        self.log: list[str] = []
        self._callback = LogCallback(lambda level, text, _: self.log.append(text.decode(errors="replace")))
        base.ggml_log_set(self._callback, None)
        self.c.llama_log_set(self._callback, None)
        self._check_layout()
        if backend == BEST:
            ggml.ggml_backend_load_all_from_path.argtypes = [C.c_char_p]
            ggml.ggml_backend_load_all_from_path(str(folder).encode())
        else:
            ggml.ggml_backend_load.argtypes, ggml.ggml_backend_load.restype = [C.c_char_p], C.c_void_p
            if not ggml.ggml_backend_load(str(folder / f"libggml-cpu-{backend}.so").encode()):
                raise SystemExit(f"backend {backend}: this CPU or this folder does not have it: {folder}")
        # ggml opens every build to score it and keeps the best one mapped
        mapped = Path("/proc/self/maps").read_text()
        self.backend = "cuda" if "libggml-cuda.so" in mapped else re.findall(r"libggml-cpu-(\w+)\.so", mapped)[-1]

    def _check_layout(self) -> None:
        model, context = self.c.llama_model_default_params(), self.c.llama_context_default_params()
        quantize = self.c.llama_model_quantize_default_params()
        found = (model.n_gpu_layers, model.split_mode, model.use_extra_bufts, context.n_ctx, context.n_batch, context.n_ubatch,
                 context.n_threads, context.flash_attn_type, context.yarn_ext_factor, context.type_k, context.type_v,
                 context.op_offload, context.swa_full, context.ctx_other, quantize.quantize_output_tensor, quantize.max_buf_size)
        want = (-1, 1, True, 512, 2048, 512, 4, -1, -1.0, 1, 1, True, True, None, True, 8 << 30)
        if found != want:
            raise SystemExit(f"{self.folder}: the parameter structs of {self.version} differ from the layout known here")

    def dequantize(self, source: Path, target: Path) -> None:
        """Writes `source` again with every weight as f32."""
        params = self.c.llama_model_quantize_default_params()
        params.ftype = 0  # all f32
        params.allow_requantize = True
        mark = len(self.log)
        if self.c.llama_model_quantize(str(source).encode(), str(target).encode(), C.byref(params)) != 0:
            raise SystemExit(f"{source}: llama.cpp cannot dequantise it: {self.last_words(mark)}")

    def last_words(self, mark: int) -> str:
        return "".join(self.log[mark:]).strip().splitlines()[-1]

    @property
    def version(self) -> str:
        return "llama.cpp " + self.c.llama_version().decode()

    @property
    def package(self) -> str:
        """The npm package the folder was unpacked from, as name@version."""
        described = self.folder.parent.parent / "package.json"
        if not described.exists():
            return str(self.folder)
        facts = json.loads(described.read_text())
        return f"{facts['name']}@{facts['version']}"


class Model:
    """One GGUF and one context: a single sequence, started over by `clear`."""

    def __init__(self, library: Library, path: Path, *, n_ctx: int, threads: int = 2, kv: str = "f16", flash: str = "off", embeddings: bool = False):
        self.c = library.c
        mark = len(library.log)
        self.model = self.c.llama_model_load_from_file(str(path).encode(), self.c.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp refuses it: {library.last_words(mark)}")
        self.vocab = self.c.llama_model_get_vocab(self.model)
        self.n_vocab = self.c.llama_vocab_n_tokens(self.vocab)
        self.bos = self.c.llama_vocab_bos(self.vocab)
        self.add_bos = self.c.llama_vocab_get_add_bos(self.vocab)
        self.add_eos = self.c.llama_vocab_get_add_eos(self.vocab)
        params = self.c.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = n_ctx  # an encoder reads a text whole
        params.embeddings = embeddings
        params.n_outputs_max_per_seq = 0  # no limit: the default of 1 gives the last position only
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = GGML_TYPE[kv]
        params.flash_attn_type = FLASH[flash]
        self.context = self.c.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"{path}: no context of {n_ctx}: {library.last_words(mark)}")

    def adapt(self, adapters: list[tuple[Path, float]]) -> None:
        """Uses these adapters, each with its scale."""
        found = [self.c.llama_adapter_lora_init(self.model, str(path).encode()) for path, _ in adapters]
        if None in found:
            raise SystemExit(f"{adapters[found.index(None)][0]}: llama.cpp refuses the adapter")
        scales = (C.c_float * len(found))(*(scale for _, scale in adapters))
        if self.c.llama_set_adapters_lora(self.context, (C.c_void_p * len(found))(*found), len(found), scales) != 0:
            raise SystemExit("llama.cpp cannot use the adapters")

    def close(self) -> None:
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, with the special tokens of the model; `special`
        recognises control tokens in the text."""
        raw = text.encode()
        ids = (C.c_int32 * (len(raw) + 8))()
        count = self.c.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), True, special)
        assert count >= 0, count
        return list(ids[:count])

    def detokenize(self, ids: list[int]) -> str:
        raw = C.create_string_buffer(64 * len(ids) + 64)
        count = self.c.llama_detokenize(self.vocab, (C.c_int32 * len(ids))(*ids), len(ids), raw, len(raw), False, True)
        assert count >= 0, count
        return raw.raw[:count].decode(errors="replace")

    def ends(self, token: int) -> bool:
        return self.c.llama_vocab_is_eog(self.vocab, token)

    def clear(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def feed(self, ids: list[int], *, outputs_from: int | None = None) -> None:
        """Appends `ids` to the sequence; logits are computed from index
        `outputs_from` on (default: the last only)."""
        n = len(ids)
        first = n - 1 if outputs_from is None else outputs_from
        wanted = (C.c_int8 * n)(*(i >= first for i in range(n)))
        status = self.c.llama_decode(self.context, Batch(n_tokens=n, token=(C.c_int32 * n)(*ids), logits=wanted))
        if status != 0:
            raise SystemExit(f"llama_decode of {n} tokens: status {status}")

    def embed(self, ids: list[int]) -> np.ndarray:
        """The pooled vector of a text, its scores, or a row per token, as the model's file says."""
        self.clear()
        self.feed(ids, outputs_from=0)
        pooling = self.c.llama_pooling_type(self.context)
        if pooling == 0:
            width = self.c.llama_model_n_embd_out(self.model)
            rows = [self.c.llama_get_embeddings_ith(self.context, i) for i in range(len(ids))]
            return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])
        width = self.c.llama_model_n_cls_out(self.model) if pooling == 4 else self.c.llama_model_n_embd_out(self.model)
        return np.ctypeslib.as_array(self.c.llama_get_embeddings_seq(self.context, 0), (width,)).copy()

    def sync(self) -> None:
        self.c.llama_synchronize(self.context)

    def logits(self, rows: int = 1) -> np.ndarray:
        """The last `feed`'s outputs, copied out."""
        return np.ctypeslib.as_array(self.c.llama_get_logits(self.context), (rows, self.n_vocab)).copy()  # [rows, vocab]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise in f64, to avoid additional rounding."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
