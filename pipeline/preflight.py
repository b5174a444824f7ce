# SPDX-License-Identifier: Apache-2.0
"""Before work: how long a deployment takes on this machine, and how much memory and disk; too little is refused at once.

Memory is counted from what a deployment holds: the arenas of a plan (`planner.memory`), for the base plan and for one
alternative beside it while phases 4 and 5 compare; the oracle's FP32 weights (at most half of what is available,
`reference.oracle.layer_weights`); and a fixed part for Python, the fixture model and schedules. On the demo model the
count for one plan is 2.4 GB and the peak that the process reached in phase 3 was 2.4 GB.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.estimate import phase_seconds
from planner.plan import Choices
from planner.widths import Widths
from reference.oracle.config import ModelConfig
from reference.oracle.layer_weights import available_memory
from refusal import Refusal

LONG_SECONDS = 30 * 60
FIXED_MEMORY = 800 << 20
PLANS_AT_ONCE = 2
FIXED_DISK = 300 << 20
# Programs, kernels and schedules of the demo model; weights are not copied.
DISK_BYTES_PER_PARAMETER = 0.5


@dataclass(frozen=True)
class Needs:
    """What a deployment takes, as estimated: wall seconds by phase on two quiet cores, and bytes."""

    seconds: dict[int, float]
    memory: int
    disk: int

    @property
    def total_seconds(self) -> float:
        """Wall seconds of all the phases."""
        return sum(self.seconds.values())

    @property
    def long(self) -> bool:
        """Whether a person should be told before it begins."""
        return self.total_seconds > LONG_SECONDS


def parameters(config: ModelConfig, layers: int | None = None) -> int:
    """Parameters of the linear layers and the embedding; of the first `layers` layers where it is given."""
    w = Widths.of(config)
    layer = w.hidden_valid * (w.qkv + w.attention + 3 * w.intermediate_valid)
    count = config.num_hidden_layers if layers is None else layers
    return count * layer + w.vocab_valid * w.hidden_valid * (1 if config.tie_word_embeddings else 2)


def arena_bytes(config: ModelConfig, choices: Choices) -> int:
    """Bytes of a plan's arenas. Weights twice (prefill and decode order), bf16; activations of each prefill row and layer."""
    w = Widths.of(config)
    layers = config.num_hidden_layers if choices.layers is None else len(choices.layers)
    linear = layers * w.hidden * (w.qkv + w.attention + 3 * w.intermediate) + w.vocab * w.hidden
    rows = sum(choices.prefill_buckets)
    activations = rows * layers * (7 * w.hidden + 2 * w.qkv + w.attention + 3 * w.intermediate)
    kv = layers * 2 * w.kv_heads * choices.context * w.head_dim
    logits = ((choices.score_bucket or 0) + len(choices.decode_buckets)) * w.vocab
    return 2 * (2 * linear + activations + kv) + 4 * logits


def needs_of(config: ModelConfig, choices: Choices, phases: Sequence[int], available: int | None = None) -> Needs:
    """What the given phases of a deployment take.

    Args:
        available: bytes of memory that can be had; None asks the system.
    """
    layers = None if choices.layers is None else len(choices.layers)
    available = available_memory() if available is None else available
    count = parameters(config, layers)
    oracle = min(4 * count, available // 2)
    return Needs(
        seconds={phase: phase_seconds(config, choices, phase) for phase in phases},
        memory=FIXED_MEMORY + oracle + PLANS_AT_ONCE * arena_bytes(config, choices),
        disk=FIXED_DISK + int(count * DISK_BYTES_PER_PARAMETER),
    )


def require_room(needs: Needs, where: Path, *, memory: int | None = None, disk: int | None = None) -> None:
    """Refuse before work what this machine cannot hold.

    Args:
        where: the working directory. memory, disk: bytes available; None asks the system.

    Raises:
        Refusal: too little memory or disk, with both numbers.
    """
    memory = available_memory() if memory is None else memory
    disk = shutil.disk_usage(where).free if disk is None else disk
    if memory < needs.memory:
        raise Refusal(
            f"{memory >> 20} MiB of memory available", expected=f"about {needs.memory >> 20} MiB for this model",
            where="this machine",
            next_step="end other programs, give --context 1024 or less, or --layers N for a partial deployment (never proven)",
        )  # fmt: skip
    if disk < needs.disk:
        raise Refusal(f"{disk >> 20} MiB of disk free", expected=f"{needs.disk >> 20} MiB", where=str(where),
                      next_step="free some space, or work in another directory")  # fmt: skip


def layers_within(config: ModelConfig, choices: Choices, phases: Sequence[int], seconds: float = LONG_SECONDS) -> int:
    """The most layers whose phases are estimated to end within `seconds`; at least 1."""
    fitting = 1
    for count in range(1, config.num_hidden_layers + 1):
        partial = _with_layers(choices, count)
        if sum(phase_seconds(config, partial, phase) for phase in phases) <= seconds:
            fitting = count
    return fitting


def forecast(config: ModelConfig, choices: Choices, phases: Sequence[int], device: str, needs: Needs) -> list[str]:
    """Lines for a person: time by phase, memory, disk; above 30 minutes also the way to a shorter, partial run."""
    each = ", ".join(f"{phase}: {_minutes(seconds)}" for phase, seconds in needs.seconds.items())
    lines = [
        f"estimate for the {device} on two quiet cores: {_minutes(needs.total_seconds)} (phase {each}); "
        f"memory about {needs.memory >> 20} MiB, disk about {needs.disk >> 20} MiB",
    ]
    if needs.long:
        lines.append(
            f"this is more than {LONG_SECONDS // 60} minutes; it goes on in the background and can be stopped at any time"
        )
        if choices.layers is None and config.num_hidden_layers > 1:
            fitting = min(layers_within(config, choices, phases), config.num_hidden_layers - 1)
            lines.append(f"shorter: --layers {fitting} deploys the first {fitting} of {config.num_hidden_layers} layers alone; "
                         "that is labelled partial and never proven")  # fmt: skip
    return lines


def _with_layers(choices: Choices, count: int) -> Choices:
    return replace(choices, layers=tuple(range(count)))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
