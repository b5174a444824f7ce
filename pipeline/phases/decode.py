# SPDX-License-Identifier: Apache-2.0
"""Phase 5: decode optimisation."""

from __future__ import annotations

from pipeline.context import PhaseContext
from pipeline.phases.optimise import DECODE, Optimiser
from pipeline.phases.outcome import Outcome


def run(ctx: PhaseContext) -> Outcome:
    """Try alternatives to the plan's decode entries; keep what is predicted faster and no less right."""
    return Optimiser(ctx, DECODE).run()
