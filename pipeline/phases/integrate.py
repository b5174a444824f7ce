# SPDX-License-Identifier: Apache-2.0
"""Phase 6: the one runner repeats the recorded tokens from a fresh session; what was learnt is gathered after it (`pipeline.journal`)."""

from __future__ import annotations

from judge.gates import judge_runner
from pipeline.context import PhaseContext
from pipeline.phases.outcome import Outcome
from pipeline.runner import Runner
from refusal import Refusal

TOKENS = 32


def run(ctx: PhaseContext) -> Outcome:
    """Judge the runner against the tokens that the last gate of the whole model recorded: phase 3's, or of the accepted plan."""
    record = ctx.deployment.whole_model()
    if record is None:
        raise Refusal(
            "phase 3 has not passed",
            expected="its greedy tokens",
            where="phase 6",
            next_step="scripts/deploy.py --phase 3",
        )
    recorded = record.entry.body["data"]["greedy"]
    outcome = Outcome()
    ctx.progress(f"phase 6: {TOKENS} tokens by the runner from a fresh session")
    runner = Runner.open(ctx.deployment, ctx.device, ctx.cache, ctx.progress)
    produced = [token for token, _ in runner.stream(recorded["prompt_ids"], TOKENS, stop=False)]
    outcome.add("runner", judge_runner(produced, recorded["ids"][:TOKENS], ctx.policy), ctx.model)
    outcome.inputs["artifact model"] = runner.session.artifact.key
    return outcome
