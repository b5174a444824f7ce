# SPDX-License-Identifier: Apache-2.0
"""The device's log held against the plan and against the model: every dispatch, every layer, every multiply-add.

The plan says which designs run on which slices; the log says which did. The multiply-adds that a step must cost follow from
config.json alone, so a plan that leaves a layer out, or work that the host did, shows as multiply-adds that are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from reference.oracle.config import ModelConfig

# What one layer, and the end of the model, consist of: names of the oracle's taps without the layer.
LAYER_OPERATORS = (
    "attn_norm", "qkv", "rope", "attn", "o_proj", "residual1", "mlp_norm", "gate_up", "act", "down", "residual2",
)  # fmt: skip
HEAD_OPERATORS = ("final_norm", "lm_head")

# (argument of the entry, offset in bytes, bytes)
Place = tuple[int, int, int]


class PlannedDispatch(msgspec.Struct, frozen=True):
    """A design on slices of the arenas; covers: the operators it carries out, as "layers.3.qkv" or "lm_head"."""

    design: str
    places: tuple[Place, ...]
    covers: tuple[str, ...]


class Step(msgspec.Struct, frozen=True):
    """One run of an entry. rows: tokens that it works on, padding not counted; keys: positions before the first of them."""

    entry: str
    dispatches: tuple[PlannedDispatch, ...]
    rows: int
    keys: int
    with_head: bool


class Ran(msgspec.Struct, frozen=True):
    """One line of the device's log. A design that runs several times without being configured anew is one line."""

    entry: str
    design: str
    places: tuple[Place, ...]


def layer_problems(config: ModelConfig, steps: Iterable[Step]) -> list[str]:
    """Every step covers each operator of each layer of config.json, and ends with the head where it makes logits."""
    problems, seen = [], set()
    for step in steps:
        if step.entry in seen:
            continue
        seen.add(step.entry)
        covered = Counter(name for dispatch in step.dispatches for name in dispatch.covers)
        wanted = [f"layers.{i}.{name}" for i in range(config.num_hidden_layers) for name in LAYER_OPERATORS]
        wanted += HEAD_OPERATORS if step.with_head else ()
        missing = [name for name in wanted if not covered[name]]
        if missing:
            problems.append(
                f"entry {step.entry} leaves out {len(missing)} of {len(wanted)} operators: {', '.join(missing[:4])}"
            )
    return problems


def log_problems(steps: Sequence[Step], log: Sequence[Ran]) -> list[str]:
    """The log is the planned dispatches of every step, in order, on the planned slices, and nothing else."""
    wanted = [(s.entry, d.design, place) for s in steps for d in s.dispatches for place in d.places]
    found = [(line.entry, line.design, place) for line in log for place in line.places]
    for index, (want, have) in enumerate(zip(wanted, found, strict=False)):
        if want != have:
            return [f"operand {index} of the log is {_operand(have)}, planned was {_operand(want)}"]
    if len(found) != len(wanted):
        return [
            f"the log has {len(found)} operands of {len(log)} dispatches, planned were {len(wanted)} in {len(steps)} steps"
        ]
    return []


def mac_problems(config: ModelConfig, steps: Iterable[Step], counted: Mapping[str, int]) -> list[str]:
    """counted: design -> multiply-adds that its cores did. Each design did at least what its operators cost."""
    wanted: Counter[str] = Counter()
    total = 0
    for step in steps:
        total += step_macs(config, step)
        for dispatch in step.dispatches:
            wanted[dispatch.design] += sum(
                operator_macs(config, name, step.rows, step.keys) for name in dispatch.covers
            )
    problems = [
        f"{design} did {counted.get(design, 0)} multiply-adds on the device, its operators cost {least}"
        for design, least in wanted.items()
        if counted.get(design, 0) < least
    ]
    if sum(counted.values()) < total:
        problems.append(f"the device did {sum(counted.values())} multiply-adds, the model costs {total}")
    return problems


def step_macs(config: ModelConfig, step: Step) -> int:
    """Multiply-adds of one step of the whole model, from config.json alone."""
    layer = sum(operator_macs(config, f"layers.0.{name}", step.rows, step.keys) for name in LAYER_OPERATORS)
    head = operator_macs(config, "lm_head", step.rows, step.keys) if step.with_head else 0
    return config.num_hidden_layers * layer + head


def operator_macs(config: ModelConfig, name: str, rows: int, keys: int) -> int:
    """Multiply-adds of one operator on `rows` tokens that see `keys` positions before them; 0 for element-wise ones."""
    hidden, inner = config.hidden_size, config.intermediate_size
    weights = {
        "qkv": hidden * (config.q_size + 2 * config.kv_size),
        "o_proj": config.q_size * hidden,
        "gate_up": 2 * hidden * inner,
        "down": inner * hidden,
        "lm_head": hidden * config.vocab_size,
    }
    kind = name.rsplit(".", 1)[-1]
    if kind == "attn":  # scores and values: row r sees the keys and r + 1 rows
        return 2 * config.q_size * (rows * keys + rows * (rows + 1) // 2)
    return rows * weights.get(kind, 0)


def _operand(item: tuple[str, str, Place]) -> str:
    entry, design, (argument, offset, size) = item
    return f"{design} in {entry} on bytes {offset}+{size} of argument {argument}"
