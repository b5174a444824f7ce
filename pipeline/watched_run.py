# SPDX-License-Identifier: Apache-2.0
"""A greedy run whose device is watched: what ran, on which slices, how many multiply-adds, and who wrote the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from judge.device_log import PlannedDispatch, Ran, Step
from judge.gates import GreedyRun
from judge.metrics import unwritten
from pipeline.model_session import ModelSession
from planner.memory import ARENAS
from planner.plan import Entry

MAC_COUNTERS = ("mul_adds_vector", "matrix_macs", "mul_adds_scalar")
# Promise of the design: what the host writes for a token, beside its new K and V rows.
HOST_BYTES = 64 << 10


@dataclass(frozen=True)
class WatchedRun:
    """steps: what the plan says must run for these tokens; log and macs (by design): what the device says did run."""

    greedy: GreedyRun
    steps: tuple[Step, ...]
    log: tuple[Ran, ...]
    macs: dict[str, int]
    problems: tuple[str, ...]


def watch_greedy(session: ModelSession, prompt: list[int], count: int, name: str = "probe") -> WatchedRun:
    """Greedy tokens after a prompt. Logits are poisoned before each step, and read again from the device after it."""
    device = session.session
    device.clear_log()
    session.prefill(prompt[:-1])
    token, ids, rows, problems = prompt[-1], [], [], []
    for step in range(count):
        position = len(prompt) - 1 + step
        place = session.plan.entry(_decode_entry(session, position)).values["logits"]
        device.write(place.arena, place.offset_bytes, unwritten((place.elements,), "float32"))
        logits = session.decode(token)
        raw = device.read(place.arena, place.offset_bytes, (place.elements,), np.float32)[: logits.size]
        problems += _host_problems(session, step, logits, raw)
        token = int(np.argmax(logits))
        ids.append(token)
        rows.append(logits)
    log = tuple(Ran(r.entry, r.design, tuple(tuple(place) for place in r.arguments)) for r in device.log())
    macs = {
        design: sum(sum(totals.counter(name).values()) for name in MAC_COUNTERS)
        for design, totals in device.totals().items()
    }
    greedy = GreedyRun(name, tuple(prompt), tuple(ids), np.stack(rows))
    return WatchedRun(greedy, _steps(session, len(prompt), count), log, macs, tuple(problems[:5]))


def _host_problems(session: ModelSession, step: int, logits: np.ndarray, raw: np.ndarray) -> list[str]:
    problems = []
    if not np.isfinite(raw).all():
        problems.append(f"token {step}: the device wrote no logits where the plan puts them")
    elif raw.tobytes() != np.ascontiguousarray(logits, np.float32).tobytes():
        problems.append(f"token {step}: the logits are not those that the device wrote")
    config, layers = session.config, len(session.plan.layers)
    allowed = HOST_BYTES + 2 * layers * 2 * config.kv_size
    if session.host_bytes_per_token > allowed:
        problems.append(f"token {step}: the host wrote {session.host_bytes_per_token} bytes, at most {allowed}")
    return problems


def _steps(session: ModelSession, prompt: int, count: int) -> tuple[Step, ...]:
    """What must run: the prompt by the smallest prefill bucket that holds it, then one decode step a token."""
    before = prompt - 1
    choices = session.plan.choices
    prefilled = min(before, max(choices.prefill_buckets))
    steps = []
    if prefilled:
        bucket = min(b for b in choices.prefill_buckets if b >= prefilled)
        steps.append(_step(session.plan.entry(f"prefill_{bucket}"), prefilled, 0, with_head=False))
    for position in range(prefilled, before + count):
        steps.append(_step(session.plan.entry(_decode_entry(session, position)), 1, position, with_head=True))
    return tuple(steps)


def _decode_entry(session: ModelSession, position: int) -> str:
    return f"decode_{min(b for b in session.plan.choices.decode_buckets if b >= position)}"


def _step(entry: Entry, rows: int, keys: int, *, with_head: bool) -> Step:
    arenas = list(ARENAS)
    dispatches = tuple(
        PlannedDispatch(
            d.design.name, tuple((arenas.index(p.arena), p.offset_bytes, p.type.nbytes) for p in d.operands), d.covers
        )
        for d in entry.dispatches
    )
    return Step(entry.name, dispatches, rows, keys, with_head)
