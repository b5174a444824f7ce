# SPDX-License-Identifier: Apache-2.0
"""Host time of a step, by formula: bytes that the host copies over a published copy rate. Provenance: model.

The host's operations are a closed list (embedding rows, appending K and V rows, params, sampling). Submitting a dispatch is
part of the predicted launch, not of this.

    prefill of M rows   embedding rows M * hidden * 2; K and V rows of every layer M * 2 * KV heads * head_dim * 2
    decode              one embedding row, params, one K and V row a layer; logits read for sampling: vocab * 4
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.designs.attention_decode import PARAMS
from npu.cost import Term
from npu.cost_rates import HOST_COPY
from planner.plan import Plan

BF16_BYTES, F32_BYTES = 2, 4


@dataclass(frozen=True)
class HostWork:
    """Bytes that the host writes into arenas, and bytes of results that it reads, in one step."""

    written: int
    read: int

    @property
    def term(self) -> Term:
        """Seconds of the step, with the rate's source."""
        total = self.written + self.read
        return Term("host", total / HOST_COPY.value, total, "B copied", HOST_COPY)

    @property
    def seconds(self) -> float:
        return self.term.seconds


def prefill_host(plan: Plan, bucket: int, tokens: int | None = None) -> HostWork:
    """A prompt of `tokens` (default: a full bucket): all rows of the bucket are written, rows of real tokens appended."""
    count = bucket if tokens is None else tokens
    return HostWork(BF16_BYTES * bucket * plan.widths.hidden + _kv_bytes(plan, count), 0)


def decode_host(plan: Plan) -> HostWork:
    """One token."""
    w = plan.widths
    row = BF16_BYTES * (w.hidden + PARAMS + w.head_dim)
    return HostWork(row + _kv_bytes(plan, 1), F32_BYTES * w.vocab_valid)


def _kv_bytes(plan: Plan, tokens: int) -> int:
    w = plan.widths
    return BF16_BYTES * tokens * len(plan.layers) * 2 * w.kv_heads * w.head_dim
