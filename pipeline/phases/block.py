# SPDX-License-Identifier: Apache-2.0
"""Phase 2: one transformer block on real activations, position by position and head by head, prefill and decode."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from judge.gates import judge_block
from judge.own_limits import judge_with_own_limits
from kernels.designs.design import as_bf16
from pipeline.context import PhaseContext, Subject
from pipeline.model_session import ModelSession
from pipeline.phases.outcome import Outcome
from pipeline.phases.own_runs import block_run
from pipeline.texts import text_ids
from reference.oracle.decoder import TapRecorder

POSITIONS = 64


def run(ctx: PhaseContext) -> Outcome:
    """Judge a first, a middle and the last block of the model, and the fixture's second."""
    outcome = Outcome()
    planned = ctx.model.choices.layers or tuple(range(ctx.model.config.num_hidden_layers))
    chosen = sorted({planned[0], planned[len(planned) // 2], planned[-1]})
    for subject, layers in ((ctx.fixture, [1]), (ctx.model, chosen)):
        for layer in layers:
            ctx.progress(f"phase 2: block {layer} of the {subject.name}")
            judge_layer(ctx, subject, layer, outcome)
    return outcome


def judge_layer(ctx: PhaseContext, subject: Subject, layer: int, outcome: Outcome) -> None:
    """Run one block on the device from the oracle's own input, all positions by prefill and again one by one by decode.

    Decode starts from an empty cache and fills it itself, so its gate sees decode's error alone.
    """
    ids = text_ids(subject, 1, POSITIONS)
    want = oracle_taps(subject, layer, ids)
    choices = replace(
        subject.choices,
        layers=(layer,),
        prefill_buckets=(POSITIONS,),
        decode_buckets=(256,),
        context=256,
        score_bucket=None,
    )
    session = subject.session(choices)
    label = f"{subject.name} layer {layer}"
    for path, precision, run_block in (
        ("prefill", choices.prefill_mode, device_prefill), ("decode", "bf16", device_decode)
    ):  # fmt: skip
        got = run_block(session, layer, want["input"])
        verdict = judge_with_own_limits(
            partial(judge_block, subject.thresholds, precision, got, want),
            ctx.policy,
            block_run(subject, layer, precision, want, ctx.policy.limits),
            ctx.progress,
        )
        outcome.add(f"{label} {path}", verdict, subject)
    outcome.inputs[f"artifact {label}"] = session.artifact.key


def oracle_taps(subject: Subject, layer: int, ids: list[int]) -> dict[str, np.ndarray]:
    """The block's oracle values: input, k_rope, qkv.v, attn.out, residual2, from a full FP32 run."""
    names = ("input", "k_rope", "qkv.v", "attn.out", "residual2")
    recorder = TapRecorder(*(f"layers.{layer}.{name}" for name in names))
    subject.decoder.prefill(ids, cache=subject.decoder.new_cache(), tap=recorder, layers=layer + 1)
    taps = {name: recorder[f"layers.{layer}.{name}"] for name in names}
    taps["attn.out"] = taps["attn.out"].reshape(len(ids), subject.config.num_attention_heads, -1)
    return taps


def device_prefill(session: ModelSession, layer: int, hidden: np.ndarray) -> dict[str, np.ndarray]:
    """Run the block's prefill entry on given rows and read its taps."""
    w = session.plan.widths
    entry = session.plan.entry(f"prefill_{len(hidden)}")
    rows = np.zeros((len(hidden), w.hidden), np.float32)
    rows[:, : w.hidden_valid] = hidden
    session.reset()
    session.run_rows(entry, as_bf16(rows))
    session.append_prefill(entry, len(hidden))
    p = f"layers.{layer}"
    rope = session.read(entry.values[f"{p}.rope.out"], (len(hidden), w.qkv))
    attention = session.read(entry.values[f"{p}.attn.out"], (len(hidden), w.heads, w.head_dim))
    after = session.read(entry.values["output"], (len(hidden), w.hidden))[:, : w.hidden_valid]
    return _taps(session, rope, attention, after) | {"input": hidden}


def _taps(session: ModelSession, rows: np.ndarray, attention: np.ndarray, after: np.ndarray) -> dict[str, np.ndarray]:
    """rows: [n, q | k | v] with k rotated."""
    w = session.plan.widths
    heads = rows.reshape(len(rows), -1, w.head_dim)
    return {
        "k_rope": heads[:, w.heads : w.heads + w.kv_heads],
        "qkv.v": heads[:, w.heads + w.kv_heads : w.heads + 2 * w.kv_heads],
        "attn.out": attention,
        "residual2": after,
    }


def device_decode(session: ModelSession, layer: int, hidden: np.ndarray) -> dict[str, np.ndarray]:
    """Decode given rows one after another from an empty cache, and read the taps of each."""
    w = session.plan.widths
    session.reset()
    steps = []
    for row in hidden:
        padded = np.zeros((1, w.hidden), np.float32)
        padded[0, : w.hidden_valid] = row
        entry = session.decode_rows(as_bf16(padded))
        out = session.read(entry.values["attention_rows"], (1, (w.heads + 2 * w.kv_heads) * w.head_dim))
        attention = out[:, : w.attention].reshape(1, w.heads, w.head_dim)
        after = session.read(entry.values["output"], (1, w.hidden))[:, : w.hidden_valid]
        steps.append(_taps(session, out, attention, after))
    return {tap: np.concatenate([step[tap] for step in steps]) for tap in steps[0]} | {"input": hidden}
