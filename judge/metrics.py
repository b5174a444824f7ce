# SPDX-License-Identifier: Apache-2.0
"""How far an output is from its oracle: absolute, relative, correlation, bias, gain; whole and at the worst place.

Arrays are [positions, ...]: axis 0 is the token (or row, or dispatch), and a third axis makes it
[positions, heads, head_dim]. Every figure is a loss: 0 is perfect, larger is worse, so that a gate is one comparison.

    abs           max|y - r| / rms(r)
    rel           sum|y - r| / sum|r|
    pearson_loss  1 - Pearson correlation of the centred values
    bias          |mean(y - r)| / rms(r); the signed value is kept beside it
    gain          |sum (y - r) r| / sum r^2: how much the output is scaled, as rounding toward zero shrinks it

What no number describes has a name of its own: nothing to compare, other shape, not finite, never written, all zero,
constant. A comparison with such a failure has no figures, so that nobody can read "low accuracy" into it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np

WORST_ELEMENTS = 5
# What a difference from a reference of zeros counts as: beyond any threshold, and still a number that JSON can hold.
UNBOUNDED = 1e9


class Failure(StrEnum):
    """What is wrong with an output before any accuracy is measured."""

    EMPTY = "empty"
    SHAPE_MISMATCH = "shape_mismatch"
    TOO_FEW = "too_few"
    UNWRITTEN = "unwritten"
    NON_FINITE = "non_finite"
    ALL_ZERO = "all_zero"
    ZERO_ROWS = "zero_rows"
    CONSTANT = "constant"
    STALE = "stale"
    DIVERGED = "diverged"
    NOT_CONSUMED = "not_consumed"
    NOT_MEASURED = "not_measured"
    OUTSIDE_VOCABULARY = "outside_vocabulary"
    ORACLE_UNUSABLE = "oracle_unusable"


class NamedFailure(msgspec.Struct, frozen=True):
    """One failure with what was found and the first positions (rows) where it stands."""

    name: Failure
    detail: str
    positions: tuple[int, ...] = ()


class Figure(msgspec.Struct, frozen=True):
    """One loss. `position` is the row or head of a worst-place figure, or () for a figure over everything."""

    value: float
    position: tuple[int, ...] = ()


class Element(msgspec.Struct, frozen=True):
    """One element of the output beside the oracle's."""

    index: tuple[int, ...]
    got: float
    want: float


class Comparison(msgspec.Struct, frozen=True):
    """Figures by name, or named failures; never both. `worst` lists the elements that are furthest off."""

    figures: dict[str, Figure] = {}
    failures: tuple[NamedFailure, ...] = ()
    worst: tuple[Element, ...] = ()
    signed_bias: float = 0.0
    positions: int = 0


def unwritten(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An output buffer that nobody has written: signalling NaN in every element.

    Arithmetic never makes a signalling NaN (IEEE 754 operations deliver quiet ones), so one that is still there after
    a dispatch was not written by it. dtype: "bfloat16" (given as uint16 bits) or "float32".
    """
    if dtype == "bfloat16":
        return np.full(shape, 0x7FA5, np.uint16)
    if dtype == "float32":
        return np.full(shape, 0x7FA57FA5, np.uint32).view(np.float32)
    raise ValueError(f"dtype {dtype!r}: expected 'bfloat16' or 'float32'")


def widen(array: np.ndarray) -> np.ndarray:
    """bf16 (as uint16 bits or as a bfloat16 array) or any real array as floating point of at least 32 bits.

    bf16 is shifted, not converted: a conversion would make signalling NaNs quiet and hide what was never written.
    """
    array = np.ascontiguousarray(array)
    if array.dtype == np.uint16 or array.dtype.name == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32)


def signalling_nan(array: np.ndarray) -> np.ndarray:
    """Which elements of a float32 array hold a signalling NaN; all false for other types."""
    if array.dtype != np.float32:
        return np.zeros(array.shape, bool)
    bits = array.view(np.uint32)
    return np.isnan(array) & ((bits & 0x0040_0000) == 0)


def compare(got: np.ndarray, want: np.ndarray, *, min_positions: int = 1) -> Comparison:
    """Compare an output with its oracle.

    Args:
        got: device output, [positions, ...]; bf16 bits, bfloat16, float32 or float64. 1-D counts as one position.
        want: the oracle's, of the same shape.
        min_positions: fewer positions than this is a failure.
    """
    got, want = widen(got), widen(want)
    failures = find_failures(got, want, min_positions=min_positions)
    if failures:
        return Comparison(failures=failures, positions=_rows(got).shape[0] if got.size else 0)
    y, r = _rows(got).astype(np.float64), _rows(want).astype(np.float64)
    figures = _figures(y, r)
    return Comparison(figures, (), worst_elements(y, r, got.shape), _signed_bias(y, r), y.shape[0])


def find_failures(got: np.ndarray, want: np.ndarray, *, min_positions: int = 1) -> tuple[NamedFailure, ...]:
    """The named failures of an output; got and want as `widen` returns them."""
    if got.size == 0 or want.size == 0:
        return (NamedFailure(Failure.EMPTY, f"{got.size} elements from the device, {want.size} from the oracle"),)
    if got.shape != want.shape:
        detail = f"device output {list(got.shape)}, oracle {list(want.shape)}"
        return (NamedFailure(Failure.SHAPE_MISMATCH, detail),)
    y, r = _rows(got), _rows(want)
    if y.shape[0] < min_positions:
        return (NamedFailure(Failure.TOO_FEW, f"{y.shape[0]} positions, at least {min_positions} are needed"),)
    if not np.isfinite(r).all():
        return (NamedFailure(Failure.ORACLE_UNUSABLE, "the oracle itself is not finite", _bad_rows(~np.isfinite(r))),)
    if r.size > 1 and r.min() == r.max():
        return (NamedFailure(Failure.ORACLE_UNUSABLE, f"the oracle is {r.flat[0]!r} everywhere: it can show nothing"),)
    return _value_failures(y, r)


def worst_elements(y: np.ndarray, r: np.ndarray, shape: tuple[int, ...]) -> tuple[Element, ...]:
    """The elements that are furthest from the oracle, the furthest first."""
    off = np.abs(y - r).ravel()
    count = min(WORST_ELEMENTS, off.size)
    order = np.argpartition(off, off.size - count)[off.size - count :]
    order = order[np.argsort(-off[order], kind="stable")]
    places = (tuple(int(i) for i in np.unravel_index(flat, shape)) for flat in order)
    return tuple(
        Element(place, float(y.ravel()[flat]), float(r.ravel()[flat]))
        for place, flat in zip(places, order, strict=True)
        if off[flat] > 0
    )


def pearson(y: np.ndarray, r: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """Pearson correlation over `axis`. Where it is undefined, 1 if both sides are equal there, else 0."""
    yc = y - y.mean(axis=axis, keepdims=True)
    rc = r - r.mean(axis=axis, keepdims=True)
    cross = (yc * rc).sum(axis=axis)
    norm = np.sqrt((yc * yc).sum(axis=axis) * (rc * rc).sum(axis=axis))
    equal = (y == r).all(axis=axis)
    return np.where(norm > 0, cross / np.where(norm > 0, norm, 1), equal.astype(np.float64))


def _rows(array: np.ndarray) -> np.ndarray:
    """1-D becomes one position; everything from axis 3 on is flattened into the third."""
    if array.ndim < 2:
        return array.reshape(1, -1)
    return array if array.ndim <= 3 else array.reshape(*array.shape[:2], -1)


def _bad_rows(mask: np.ndarray) -> tuple[int, ...]:
    rows = np.flatnonzero(mask.reshape(mask.shape[0], -1).any(axis=1))
    return tuple(int(row) for row in rows[:WORST_ELEMENTS])


def _value_failures(y: np.ndarray, r: np.ndarray) -> tuple[NamedFailure, ...]:
    """Failures that the values show; the most telling alone, since it explains the others."""
    survivors = signalling_nan(y)
    if survivors.any():
        detail = f"{int(survivors.sum())} of {y.size} elements still hold the fill pattern: the device never wrote them"
        return (NamedFailure(Failure.UNWRITTEN, detail, _bad_rows(survivors)),)
    infinite = ~np.isfinite(y)
    if infinite.any():
        nans = int(np.isnan(y).sum())
        detail = f"{nans} NaN and {int(infinite.sum()) - nans} infinite of {y.size} elements"
        return (NamedFailure(Failure.NON_FINITE, detail, _bad_rows(infinite)),)
    if not y.any():
        return (NamedFailure(Failure.ALL_ZERO, f"all {y.size} elements are zero; the oracle's are not"),)
    if y.size > 1 and y.min() == y.max():
        return (NamedFailure(Failure.CONSTANT, f"all {y.size} elements are {float(y.flat[0])!r}"),)
    blank = ~y.reshape(y.shape[0], -1).any(axis=1) & r.reshape(r.shape[0], -1).any(axis=1)
    if blank.any():
        detail = f"{int(blank.sum())} of {y.shape[0]} positions are all zero; the oracle's are not"
        return (NamedFailure(Failure.ZERO_ROWS, detail, _bad_rows(blank)),)
    return ()


def _losses(y: np.ndarray, r: np.ndarray, axis: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The five losses, reduced over `axis`. Against a reference of zeros any difference is UNBOUNDED."""
    diff = y - r
    rms = np.sqrt((r * r).mean(axis=axis))
    return {
        "abs": _ratio(np.abs(diff).max(axis=axis), rms),
        "rel": _ratio(np.abs(diff).sum(axis=axis), np.abs(r).sum(axis=axis)),
        "pearson_loss": 1.0 - pearson(y, r, axis),
        "bias": _ratio(np.abs(diff.mean(axis=axis)), rms),
        "gain": _ratio(np.abs((diff * r).sum(axis=axis)), (r * r).sum(axis=axis)),
    }


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    safe = np.where(bottom > 0, bottom, 1.0)
    return np.where(bottom > 0, top / safe, np.where(top > 0, UNBOUNDED, 0.0))


def _figures(y: np.ndarray, r: np.ndarray) -> dict[str, Figure]:
    every = tuple(range(y.ndim))
    figures = {name: Figure(float(value)) for name, value in _losses(y, r, every).items()}
    places = {"worst_position": 0} | ({"worst_head": 1} if y.ndim == 3 else {})
    for suffix, kept in places.items():
        for name, values in _losses(y, r, tuple(axis for axis in every if axis != kept)).items():
            place = int(np.argmax(values))
            figures[f"{name}_{suffix}"] = Figure(float(values[place]), (place,))
    return figures


def _signed_bias(y: np.ndarray, r: np.ndarray) -> float:
    return float((y - r).mean() / np.sqrt((r * r).mean()))
