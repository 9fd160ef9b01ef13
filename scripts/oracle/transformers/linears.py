#!/usr/bin/env python3
"""Records small quantised linears as the libraries that write such checkpoints make and decode them.

    linears.py        into fixtures/quantized/NAME.safetensors and NAME.json
    linears.py GPTQ AWQ    only those of groups of 128: the folders have `auto_gptq` 0.7.1 and `awq` 0.2.9

The tensors of `linear` are those of a checkpoint, `expected` has the decoded weights, and the JSON file has
the quantization_config. compressed-tensors, bitsandbytes, MLX and transformers (BitNet, MXFP4) decode their
own, and so do auto-gptq and AutoAWQ, whose packing modules are loaded from their unpacked packages (both need
a GPU to be installed); other GPTQ, AWQ and FP8 linears are packed and decoded here with numpy from the
description of their layouts. Needs torch, transformers, safetensors, compressed-tensors, bitsandbytes and
mlx[cpu] from PyPI.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "quantized"
ROWS, COLS = 16, 128


def save(name: str, config: dict, tensors: dict[str, torch.Tensor], expected: torch.Tensor) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    named = {f"linear{key}": value.contiguous() for key, value in tensors.items()}
    save_file({**named, "expected": expected.float().contiguous()}, str(OUT / f"{name}.safetensors"))
    (OUT / f"{name}.json").write_text(json.dumps({"quantization_config": config}) + "\n")
    print(name, tuple(expected.shape))


def packed(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Words of codes along an axis, the first in the lowest bits."""
    codes = np.moveaxis(codes.astype(np.uint64), axis, -1)
    each = 32 // bits
    words = (codes.reshape(*codes.shape[:-1], -1, each) << (np.arange(each, dtype=np.uint64) * np.uint64(bits))).sum(-1)
    return np.moveaxis(words.astype(np.uint32), -1, axis).view(np.int32)


def gptq(name: str, bits: int, sym: bool, version: str, desc_act: bool) -> None:
    rng, group = np.random.default_rng(7), 32
    q = rng.integers(0, 1 << bits, (COLS, ROWS))
    groups = COLS // group
    zeros = np.full((groups, ROWS), 1 << (bits - 1)) if sym else rng.integers(0, 1 << bits, (groups, ROWS))
    scales = rng.uniform(0.01, 0.1, (groups, ROWS)).astype(np.float16)
    g_idx = np.arange(COLS) // group
    if desc_act:
        g_idx = rng.permutation(g_idx)
    words = packed(zeros, bits, 1).view(np.uint32)
    if version == "gptq":
        words = words - np.uint32(0xFFFFFFFF // ((1 << bits) - 1))  # with borrows, as the libraries do
    w = scales.astype(np.float32)[g_idx] * (q - zeros[g_idx]).astype(np.float32)
    tensors = {".qweight": packed(q, bits, 0), ".qzeros": words.view(np.int32), ".scales": scales, ".g_idx": g_idx.astype(np.int32)}
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": desc_act, "sym": sym, "checkpoint_format": version}
    save(name, config, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}, torch.from_numpy(w.T.copy()))


def awq() -> None:
    rng, group = np.random.default_rng(8), 64
    q, zeros = rng.integers(0, 16, (COLS, ROWS)), rng.integers(0, 16, (COLS // group, ROWS))
    scales = rng.uniform(0.01, 0.1, (COLS // group, ROWS)).astype(np.float16)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    pack = lambda codes: packed(codes.reshape(codes.shape[0], -1, 8)[:, :, order].reshape(codes.shape), 4, 1)
    w = scales.astype(np.float32).repeat(group, 0) * (q - zeros.repeat(group, 0)).astype(np.float32)
    tensors = {".qweight": pack(q), ".qzeros": pack(zeros), ".scales": scales}
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    save("awq", config, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}, torch.from_numpy(w.T.copy()))


def library_module(folder: str, name: str) -> types.ModuleType:
    """A module of an unpacked package, without what the package imports itself."""
    parts = name.split(".")[:-1]
    for i in range(len(parts)):
        package = types.ModuleType(".".join(parts[: i + 1]))
        package.__path__ = [str(Path(folder).joinpath(*parts[: i + 1]))]
        sys.modules[package.__name__] = package
    return importlib.import_module(name)


def groups_of_128(gptq_folder: str, awq_folder: str) -> None:
    torch.manual_seed(15)
    linear = torch.nn.Linear(2 * COLS, 32, bias=False).half()
    parts = linear.weight.data.float().reshape(32, -1, 128)
    scales = ((parts.amax(-1) - parts.amin(-1)) / 15).half().float()
    zeros = torch.round(-parts.amin(-1) / scales).clamp(1, 15)  # auto-gptq cannot store a zero point of 0

    layer = library_module(gptq_folder, "auto_gptq.nn_modules.qlinear.qlinear_cuda_old").QuantLinear(4, 128, 2 * COLS, 32, False)
    layer.pack(linear, scales.clone(), zeros.clone(), None)
    tensors = {f".{name}": getattr(layer, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
    layer.scales = layer.scales.float()
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False, "checkpoint_format": "gptq"}
    save("gptq-128", config, tensors, layer(torch.eye(2 * COLS)).T)

    modules = "awq.modules.linear.gemm", "awq.utils.packing_utils"
    gemm, packing = (library_module(awq_folder, name) for name in modules)
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, 128, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    tensors = {f".{name}": getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    config = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    save("awq-128", config, tensors, packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, 128).T)

    for name, symmetric in [("packed-int4-128", True), ("packed-int4-128-zeros", False)]:
        args = {"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": symmetric}
        compressed(name, "pack-quantized", args, torch.bfloat16)


def fp8(name: str, block: list[int] | None) -> None:
    torch.manual_seed(9)
    w = torch.randn(ROWS, COLS)
    rows, cols = block or [ROWS, COLS]
    grid = w.reshape(ROWS // rows, rows, COLS // cols, cols).abs().amax((1, 3)) / 448
    full = grid.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
    q = (w / full).to(torch.float8_e4m3fn)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", **({"weight_block_size": block} if block else {})}
    save(name, config, {".weight": q, ".weight_scale_inv": grid if block else grid.reshape(1)}, q.float() * full)


def compressed(name: str, form: str, args: dict, scale_dtype: torch.dtype = torch.float16) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    torch.manual_seed(10)
    w = torch.randn(ROWS, COLS)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    group = args.get("group_size") or COLS
    parts = w.reshape(ROWS, -1, group)
    state = {"weight": w}
    gparam = None
    if form.startswith("nvfp4"):
        gparam = generate_gparam(w.amin().reshape(1), w.amax().reshape(1))
        state["weight_global_scale"] = gparam
    scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), scheme.weights, **({"global_scale": gparam} if gparam is not None else {}))
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(form)
    small = compressor.compress(state, scheme)
    if "weight_scale" in small and small["weight_scale"].dtype == torch.float32 and not form.startswith("nvfp4"):
        small["weight_scale"] = small["weight_scale"].to(scale_dtype)
    small = {key: value for key, value in small.items() if value is not None}
    expected = compressor.decompress({k: v.float() if k == "weight_scale" and v.dtype == scale_dtype else v for k, v in small.items()}, scheme)["weight"]
    if form.startswith("nvfp4"):  # the library multiplies in bf16
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

        codes = unpack_fp4_from_uint8(small["weight_packed"], ROWS, COLS).float()
        expected = codes * (small["weight_scale"].float() / gparam).repeat_interleave(16, 1)
    save(name, {"quant_method": "compressed-tensors", "format": form}, {f".{k}": v for k, v in small.items()}, expected)


def bitsandbytes() -> None:
    import bitsandbytes.functional as bnb

    torch.manual_seed(11)
    w = torch.randn(ROWS, COLS)
    for name, kind, nested in [("bnb-nf4", "nf4", False), ("bnb-nf4-nested", "nf4", True), ("bnb-fp4", "fp4", False)]:
        q, state = bnb.quantize_4bit(w, blocksize=64, quant_type=kind, compress_statistics=nested)
        parts = {f".weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
        save(name, config, {".weight": q, **parts}, bnb.dequantize_4bit(q, state))
    scb = w.abs().amax(1)
    q = (w / scb[:, None] * 127).round().to(torch.int8)
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    tensors = {".weight": q, ".SCB": scb, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    save("bnb-int8", config, tensors, bnb.int8_vectorwise_dequant(q, scb))


def bitnet(name: str, linear_class: str) -> None:
    from transformers.integrations.bitnet import pack_weights, unpack_weights

    torch.manual_seed(12)
    w = torch.randint(-1, 2, (ROWS, COLS))
    q, scale = pack_weights(w.clone()), torch.tensor([0.43], dtype=torch.bfloat16)
    factor = scale.float() if linear_class == "autobitlinear" else 1 / scale.float()
    config = {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": "offline"}
    save(name, config, {".weight": q, ".weight_scale": scale}, unpack_weights(q, torch.float32) * factor)


def mxfp4() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(13)
    blocks = torch.randint(0, 256, (2, ROWS, COLS // 32, 16), dtype=torch.uint8)
    scales = torch.randint(118, 130, (2, ROWS, COLS // 32), dtype=torch.uint8)
    w = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [experts, columns, rows]
    save("mxfp4", {"quant_method": "mxfp4"}, {"_blocks": blocks, "_scales": scales}, w.transpose(1, 2))


def mlx() -> None:
    import mlx.core as mx

    mx.random.seed(14)
    w = mx.random.normal((ROWS, COLS))
    for bits in (2, 4, 8):
        q, scales, biases = mx.quantize(w, group_size=64, bits=bits)
        scales, biases = scales.astype(mx.float16), biases.astype(mx.float16)
        decoded = mx.dequantize(q, scales.astype(mx.float32), biases.astype(mx.float32), group_size=64, bits=bits)
        tensors = {".weight": torch.from_numpy(np.array(q)), ".scales": torch.from_numpy(np.array(scales)), ".biases": torch.from_numpy(np.array(biases))}
        save(f"mlx-{bits}", {"group_size": 64, "bits": bits}, tensors, torch.from_numpy(np.array(decoded)))


def main() -> None:
    if len(sys.argv) == 3:
        return groups_of_128(*sys.argv[1:])
    gptq("gptq-sym", 4, True, "gptq", False)
    gptq("gptq-zeros", 4, False, "gptq", False)
    gptq("gptq-v2", 4, False, "gptq_v2", False)
    gptq("gptq-desc-act", 4, True, "gptq", True)
    gptq("gptq-8", 8, True, "gptq", False)
    awq()
    fp8("fp8-blocks", [4, 64])
    fp8("fp8-tensor", None)
    bitnet("bitnet-auto", "autobitlinear")
    bitnet("bitnet", "bitlinear")
    mxfp4()
    mlx()
    bitsandbytes()
    compressed("packed-int4", "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True})
    compressed("packed-int4-zeros", "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False})
    compressed("packed-int8", "pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True})
    compressed("int8-channel", "int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True})
    compressed("float8-channel", "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True})
    compressed("nvfp4", "nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"})


if __name__ == "__main__":
    main()
