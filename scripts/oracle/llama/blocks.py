"""Records decoded blocks from other implementations, for the tests of crates/quant.

ggml decodes its own types, through ctypes; the formats it lacks are decoded here by numpy, directly from their
layouts and independent of the Rust code. The output is the same at every run.

Get ggml:  npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
Use:       python scripts/oracle/llama/blocks.py package/bins/linux-x64/libggml-base.so crates/quant/tests/golden

NAME.decode       blocks of random bytes, the tensor's tail if the format has one, then the weights as f32
encode.f32        rows of 256 weights to encode
NAME.encode       all those rows, encoded
encode.importance the importance of their columns
NAME.weighted     all those rows, encoded with that importance
"""
import ctypes as C
import sys
from pathlib import Path

import numpy as np

# name: id, weights per block, bytes per block, offsets of its halves, blocks to record
GGML = {
    "F32": (0, 1, 4, [], 32), "F16": (1, 1, 2, [0], 64), "BF16": (30, 1, 2, [], 64),
    "Q4_0": (2, 32, 18, [0], 16), "Q4_1": (3, 32, 20, [0, 2], 16),
    "Q5_0": (6, 32, 22, [0], 16), "Q5_1": (7, 32, 24, [0, 2], 16), "Q8_0": (8, 32, 34, [0], 16),
    "Q2_K": (10, 256, 84, [80, 82], 8), "Q3_K": (11, 256, 110, [108], 8), "Q4_K": (12, 256, 144, [0, 2], 8),
    "Q5_K": (13, 256, 176, [0, 2], 8), "Q6_K": (14, 256, 210, [208], 8),
    "IQ4_NL": (20, 32, 18, [0], 16), "IQ4_XS": (23, 256, 136, [0], 8),
    "IQ2_XXS": (16, 256, 66, [0], 16), "IQ2_XS": (17, 256, 74, [0], 24), "IQ2_S": (22, 256, 82, [0], 40),
    "IQ3_XXS": (18, 256, 98, [0], 12), "IQ3_S": (21, 256, 110, [0], 16),
    "IQ1_S": (19, 256, 50, [0], 72), "IQ1_M": (29, 256, 56, [], 72),
    "TQ1_0": (34, 256, 54, [52], 8), "TQ2_0": (35, 256, 66, [64], 8),
    "MXFP4": (39, 32, 17, [], 16), "NVFP4": (40, 64, 36, [], 64),
    "Q1_0": (41, 128, 18, [0], 8), "Q2_0": (42, 64, 18, [0], 8),
}
# name: weights per block, bytes per block, offset of the half, bytes of tail
OTHERS = {
    "Q2_0_G128": (128, 34, [0], 0), "PQ2_0": (128, 34, [0], 0), "TQ2_0_G128": (128, 34, [32], 0),
    "PTQ1_0": (128, 28, [26], 0), "I2_S": (128, 32, [], 32),
    "INT4_32": (32, 21, [], 0), "INT4_128": (128, 69, [], 0),
}
WEIGHTED = "Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS".split()
ENCODED = "F16 BF16 Q8_0 TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0".split() + WEIGHTED
# negative zero, the smallest and largest subnormals, the smallest normal, the largest
HALVES = [0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x0000, 0x3C00]


def random_blocks(rng, count, size, halves):
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    for nth, at in enumerate(halves):
        bits = rng.integers(0, 0x7C00, count, np.uint16) | (rng.integers(0, 2, count, np.uint16) << 15)
        for i in range(min(count - count // 4, len(HALVES))):  # the rest stay random, but finite
            bits[i] = HALVES[(i + 3 * nth) % len(HALVES)]
        blocks[:, at:at + 2] = bits.astype("<u2").view(np.uint8).reshape(-1, 2)
    return blocks


# bits of the index of a point, in codebook formats
INDEXED = {"IQ2_XXS": 8, "IQ2_XS": 9, "IQ2_S": 10, "IQ3_XXS": 8, "IQ3_S": 9, "IQ1_S": 11, "IQ1_M": 11}


def put_every_index(name, blocks):
    """Every point of the grid occurs, also with a scale that is not zero: the indices of all blocks count up."""
    n = np.arange(len(blocks) * (64 if name.startswith("IQ3") else 32)) % 2 ** INDEXED[name]
    low, high = n.reshape(len(blocks), -1) & 255, n.reshape(len(blocks), -1) >> 8
    if name == "IQ2_XXS":
        for i in range(4):
            blocks[:, 2 + i:66:8] = low[:, i::4]
    elif name == "IQ2_XS":
        blocks[:, 2:66:2] = low
        blocks[:, 3:66:2] = blocks[:, 3:66:2] & 254 | high
    elif name == "IQ2_S":
        blocks[:, 2:34] = low
        blocks[:, 66:74] = (high.reshape(len(blocks), 8, 4) << np.arange(0, 8, 2)).sum(axis=2)
    elif name == "IQ3_XXS":
        blocks[:, 2:66] = low
    elif name == "IQ3_S":
        blocks[:, 2:66] = low
        blocks[:, 66:74] = (high.reshape(len(blocks), 8, 8) << np.arange(8)).sum(axis=2)
    elif name == "IQ1_S":
        blocks[:, 2:34] = low
        words = blocks[:, 34:50].copy().view("<u2") & 0xF000
        blocks[:, 34:50] = (words | (high.reshape(len(blocks), 8, 4) << np.arange(0, 12, 3)).sum(axis=2)).astype("<u2").view(np.uint8)
    elif name == "IQ1_M":
        blocks[:, :32] = low
        nibbles = (high.reshape(len(blocks), 16, 2) << np.array([0, 4])).sum(axis=2)
        blocks[:, 32:48] = blocks[:, 32:48] & 0x88 | nibbles


def half(blocks, at):
    return blocks[:, at:at + 2].copy().view("<f2").astype(np.float32)  # [blocks, 1]


def pairs(codes):
    """Four weights per byte, lowest bits first."""
    return ((codes[:, :, None] >> np.array([0, 2, 4, 6])) & 3).reshape(len(codes), -1).astype(np.int32)


def trits(packed, count):
    """Digit n of a byte q is ((q * 3^n mod 256) * 3) >> 8; first digits of all bytes first."""
    digits = [(packed.astype(np.int32) * 3**n % 256) * 3 >> 8 for n in range(count)]
    return np.concatenate(digits, axis=1)


def decode_other(name, blocks, tail):
    if name in ("Q2_0_G128", "PQ2_0"):
        return half(blocks, 0) * (pairs(blocks[:, 2:]) - 1).astype(np.float32)
    if name == "TQ2_0_G128":
        return half(blocks, 32) * np.array([-1, 0, 1, 0], np.float32)[pairs(blocks[:, :32])]
    if name.startswith("INT4"):
        nibbles = blocks[:, 5:].reshape(len(blocks), -1, 1, 16) >> np.array([[0], [4]]) & 15
        codes = nibbles.reshape(len(blocks), -1).astype(np.float32) - blocks[:, 4:5].astype(np.float32)
        return blocks[:, :4].copy().view("<f4") * codes
    if name == "PTQ1_0":
        stages = [trits(blocks[:, :16], 5), trits(blocks[:, 16:24], 5), trits(blocks[:, 24:26], 4)]
        return half(blocks, 26) * (np.concatenate(stages, axis=1) - 1).astype(np.float32)
    if name == "I2_S":
        scale = tail[:4].view("<f4")[0]
        planes = [(blocks >> shift) & 3 for shift in (6, 4, 2, 0)]
        return scale * (np.concatenate(planes, axis=1).astype(np.int32) - 1).astype(np.float32)
    raise KeyError(name)


def rows_to_encode(rng):
    gauss = lambda scale: rng.normal(0, scale, 256)
    steps = (np.arange(256) * 7 % 33 - 16) / 2  # halves of a step: ties for every power-of-two scale
    outlier = gauss(0.01)
    outlier[77] = -100
    ternary = 0.37 * rng.integers(-1, 2, 256)
    rows = [gauss(1), gauss(0.02), gauss(30), np.zeros(256), -np.zeros(256), np.full(256, 0.7), np.full(256, -0.3),
            steps, ternary, outlier, gauss(1e-8), gauss(20000), rng.integers(-999, 1000, 256) * 2.0**-149]
    return np.array(rows, np.float32)


def round_away(x):
    return np.trunc(x + np.copysign(np.float32(0.5), x))


def encode_128(name, rows):
    """Largest magnitude for a scale, -1, 0 or 1 for a code; what overflows is code 0 (PQ2_0) or digit 1 (PTQ1_0)."""
    w = rows.reshape(-1, 128)
    d = np.abs(w).max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        x = w * np.where(d > 0, np.float32(1) / d, np.float32(0))
        scale = d.astype("<f2").view(np.uint8)
    fits = np.isfinite(x)
    codes = round_away(np.where(fits, x, 0)).astype(np.int32) + 1
    if name == "PQ2_0":
        codes[~fits] = 0
        shifted = codes.reshape(len(w), 32, 4) << np.array([0, 2, 4, 6])
        return np.concatenate([scale, shifted.sum(axis=2).astype(np.uint8)], axis=1)
    stages = []
    for digits, width in ((codes[:, :80], 16), (codes[:, 80:120], 8), (codes[:, 120:], 2)):
        planes = digits.reshape(len(w), -1, width)
        number = sum(planes[:, n] * 3 ** (4 - n) for n in range(planes.shape[1]))
        stages.append(((number * 256 + 242) // 243).astype(np.uint8))
    return np.concatenate(stages + [scale], axis=1)


class Ggml:
    def __init__(self, path):
        self.lib = C.CDLL(path)
        self.lib.ggml_type_name.restype = C.c_char_p
        self.lib.ggml_type_size.restype = C.c_size_t
        self.lib.ggml_blck_size.restype = C.c_int64
        self.lib.ggml_quantize_chunk.restype = C.c_size_t

    def decode(self, name, type_id, blocks, weights):
        if name == "F32":
            return blocks.reshape(-1).view("<f4")
        rows = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
        call = rows.get(name, "dequantize_row_" + self.lib.ggml_type_name(type_id).decode())
        raw, out = np.ascontiguousarray(blocks), np.zeros(weights, np.float32)
        getattr(self.lib, call)(raw.ctypes.data_as(C.c_void_p), out.ctypes.data_as(C.c_void_p), C.c_int64(weights))
        return out

    def encode(self, type_id, rows, importance=None):
        size = rows.size // self.lib.ggml_blck_size(type_id) * self.lib.ggml_type_size(type_id)
        out = np.zeros(size, np.uint8)
        wrote = self.lib.ggml_quantize_chunk(type_id, rows.ctypes.data_as(C.c_void_p), out.ctypes.data_as(C.c_void_p),
                                             C.c_int64(0), C.c_int64(len(rows)), C.c_int64(rows.shape[1]),
                                             importance.ctypes.data_as(C.c_void_p) if importance is not None else None)
        assert wrote == size, (wrote, size)
        return out


def main(lib_path, out_dir):
    ggml, out = Ggml(lib_path), Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    for name, (type_id, length, size, halves, count) in GGML.items():
        rng = np.random.default_rng(type_id)
        blocks = random_blocks(rng, count, size, halves)
        if name == "F32":
            blocks[:, 3] &= 0xBF  # an exponent below 128: finite
        if name == "BF16":
            blocks[:, 1] &= 0xBF
        if name == "MXFP4":
            blocks[:9, 0] = [0, 1, 2, 3, 126, 127, 128, 254, 255]
        if name in INDEXED:
            put_every_index(name, blocks)
        if name == "IQ1_M":  # a half in the top bits of four words
            bits = random_blocks(rng, count, 2, [0]).view("<u2")
            blocks[:, 49::2] = blocks[:, 49::2] & 15 | (bits >> np.arange(0, 16, 4) & 15) << 4
        if name == "NVFP4":
            blocks[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4)
        weights = ggml.decode(name, type_id, blocks, count * length)
        (out / f"{name}.decode").write_bytes(blocks.tobytes() + weights.astype("<f4").tobytes())
    for name, (length, size, halves, tail_size) in OTHERS.items():
        rng = np.random.default_rng(1000 + length + size)
        blocks = random_blocks(rng, 8, size, halves)
        tail = rng.integers(0, 256, tail_size, np.uint8)
        if name.startswith("INT4"):  # positive scales in bf16, then in f16, and four-bit zero points
            blocks[:4, :2], blocks[:4, 3] = 0, blocks[:4, 3] % 64
            blocks[4:, :4] = rng.uniform(1e-3, 1, (4, 1)).astype("<f2").astype("<f4").view(np.uint8)
            blocks[:, 4] &= 15
        if tail_size:
            tail[:4] = np.array([-0.0173], "<f4").view(np.uint8)
        weights = decode_other(name, blocks, tail)
        (out / f"{name}.decode").write_bytes(blocks.tobytes() + tail.tobytes() + weights.astype("<f4").tobytes())

    rows = rows_to_encode(np.random.default_rng(7))
    (out / "encode.f32").write_bytes(rows.astype("<f4").tobytes())
    for name in ENCODED:
        (out / f"{name}.encode").write_bytes(ggml.encode(GGML[name][0], rows).tobytes())
    importance = np.random.default_rng(8).gamma(0.5, 2, 256).astype(np.float32)
    (out / "encode.importance").write_bytes(importance.astype("<f4").tobytes())
    for name in WEIGHTED:
        (out / f"{name}.weighted").write_bytes(ggml.encode(GGML[name][0], rows, importance).tobytes())
    for name in ("PQ2_0", "PTQ1_0"):
        (out / f"{name}.encode").write_bytes(encode_128(name, rows).tobytes())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
