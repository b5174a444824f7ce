# SPDX-License-Identifier: Apache-2.0
"""How far next-token distributions are from the oracle's: KL, top-1, top-5, absolute logits, perplexity.

Logits are [positions, vocabulary]. All figures are losses, as in `judge.metrics`. Argmax, top-k and KL are blind to
a scaled or shifted head (Granite's logits_scaling, a final softcap): the absolute difference is always among them.
"""

from __future__ import annotations

import numpy as np

from judge.metrics import Comparison, Failure, Figure, NamedFailure, find_failures, pearson, widen, worst_elements

TOP = 5


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """log softmax over the last axis, in fp64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def kl_per_position(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """KL(oracle || device) in nats, one value a position."""
    log_p, log_q = log_softmax(want), log_softmax(got)
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(axis=-1), 0.0)


def perplexity(logits: np.ndarray, next_ids: np.ndarray) -> float:
    """exp of the mean negative log-likelihood of `next_ids` [positions], the token after each position."""
    rows = np.arange(len(next_ids))
    return float(np.exp(-log_softmax(logits)[rows, next_ids].mean()))


def compare_logits(
    got: np.ndarray, want: np.ndarray, next_ids: np.ndarray | None = None, *, min_positions: int = 1
) -> Comparison:
    """Compare teacher-forced logits with the oracle's.

    Args:
        got: device logits [positions, vocabulary].
        want: the oracle's, same shape.
        next_ids: the text's next token at each position [positions]; adds `perplexity_drift`.
        min_positions: fewer positions than this is a failure.

    Figures: kl_mean, kl_max (position), top1_miss, top5_miss (share of positions whose oracle argmax is not the
    device's first / among its first five), logits_abs (max|y-r| / rms(r)), rel, gain, pearson_loss_worst_position
    (as in `judge.metrics`), perplexity_drift = |ppl(device) / ppl(oracle) - 1|.
    """
    got, want = widen(got), widen(want)
    failures = find_failures(got, want, min_positions=min_positions) or _shape_failures(want, next_ids)
    if failures:
        return Comparison(failures=failures, positions=len(got) if got.ndim else 0)
    y, r = got.astype(np.float64), want.astype(np.float64)
    figures = _figures(y, r)
    if next_ids is not None:
        drift = abs(perplexity(y, next_ids) / perplexity(r, next_ids) - 1.0)
        figures["perplexity_drift"] = Figure(drift)
    bias = float((y - r).mean() / np.sqrt((r * r).mean()))
    return Comparison(figures, (), worst_elements(y, r, y.shape), bias, y.shape[0])


def _shape_failures(want: np.ndarray, next_ids: np.ndarray | None) -> tuple[NamedFailure, ...]:
    if want.ndim != 2:
        return (NamedFailure(Failure.SHAPE_MISMATCH, f"logits {list(want.shape)}, expected [positions, vocabulary]"),)
    if next_ids is not None and np.shape(next_ids) != (want.shape[0],):
        detail = f"{np.shape(next_ids)} next tokens for {want.shape[0]} positions"
        return (NamedFailure(Failure.SHAPE_MISMATCH, detail),)
    return ()


def _figures(y: np.ndarray, r: np.ndarray) -> dict[str, Figure]:
    kl = kl_per_position(y, r)
    best = r.argmax(axis=1)
    rank = _rank(y, best)
    correlation_loss = 1.0 - pearson(y, r, (1,))
    worst = int(correlation_loss.argmax())
    off = np.abs(y - r)
    top = np.unravel_index(int(off.argmax()), off.shape)
    return {
        "kl_mean": Figure(float(kl.mean())),
        "kl_max": Figure(float(kl.max()), (int(kl.argmax()),)),
        "top1_miss": Figure(float((rank > 0).mean())),
        "top5_miss": Figure(float((rank >= TOP).mean())),
        "logits_abs": Figure(float(off.max() / np.sqrt((r * r).mean())), tuple(int(i) for i in top)),
        "rel": Figure(float(off.sum() / np.abs(r).sum())),
        "gain": Figure(float(abs(((y - r) * r).sum()) / (r * r).sum())),
        "pearson_loss_worst_position": Figure(float(correlation_loss[worst]), (worst,)),
    }


def _rank(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """How many ids come before `ids` at each position when argmax picks; of equal logits the lower id is first."""
    own = logits[np.arange(len(ids)), ids][:, None]
    earlier = np.arange(logits.shape[1])[None, :] < ids[:, None]
    return ((logits > own) | ((logits == own) & earlier)).sum(axis=1)
