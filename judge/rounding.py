# SPDX-License-Identifier: Apache-2.0
"""AIE2P's number formats in numpy, for the judge's own independent implementations.

bf16: FP32 cut to 8 significant bits. Core stores round to nearest even if the kernel asks for it, else toward minus
infinity (the rounding register's default). bfp16ebs8: eight values share the exponent of the largest; each keeps an
8-bit two's-complement mantissa, and what does not fit is cut off toward minus infinity (facts/npu2-hardware.md 2.2).
"""

from __future__ import annotations

import numpy as np

BLOCK = 8


def round_bf16(x: np.ndarray, mode: str = "even") -> np.ndarray:
    """FP32 values rounded to bf16, returned as FP32.

    Args:
        mode: "even" (nearest, ties to even), "floor" (toward minus infinity) or "zero" (cut off).
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    if mode == "even":
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))
    elif mode == "floor":
        # Cutting the low half rounds toward zero; a negative value that lost bits goes one step further down.
        rounded = np.where(bits >> 31 == 1, bits + np.uint32(0xFFFF), bits)
    elif mode == "zero":
        rounded = bits
    else:
        raise ValueError(f"rounding mode {mode!r}: expected 'even', 'floor' or 'zero'")
    out = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(x), out, x).astype(np.float32)


def quantise_bfp16(x: np.ndarray, mode: str = "floor") -> np.ndarray:
    """Values as bfp16ebs8 holds them, in blocks of 8 along the last axis, returned as FP32.

    The last axis is padded with zeros to whole blocks, as a GEMM pads K.

    Args:
        mode: "floor" (what the hardware does) or "even" (nearest, for comparison).
    """
    x = np.ascontiguousarray(x, np.float32)
    length = x.shape[-1]
    padding = -length % BLOCK
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)]) if padding else x
    blocks = padded.reshape(*padded.shape[:-1], -1, BLOCK)
    _, exponent = np.frexp(np.abs(blocks).max(axis=-1, keepdims=True))
    # frexp gives [0.5, 1) * 2^e, so the largest value's own exponent is e - 1; its mantissa is m / 64.
    step = np.ldexp(np.float32(1), exponent - 1 - 6)
    cut = np.floor if mode == "floor" else np.rint
    mantissa = np.clip(cut(blocks / step), -128, 127)
    return (mantissa * step).astype(np.float32).reshape(padded.shape)[..., :length]
