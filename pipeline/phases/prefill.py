# SPDX-License-Identifier: Apache-2.0
"""Phase 4: prefill optimisation."""

from __future__ import annotations

from pipeline.context import PhaseContext
from pipeline.phases.optimise import PREFILL, Optimiser
from pipeline.phases.outcome import Outcome


def run(ctx: PhaseContext) -> Outcome:
    """Try alternatives to the plan's prefill entries; keep what is predicted faster and no less right."""
    return Optimiser(ctx, PREFILL).run()
