# SPDX-License-Identifier: Apache-2.0
"""How long a phase takes on the digital twin, before it starts: a rough figure, for a person who waits.

Basis: wall seconds of each phase for SmolLM2-135M (30 layers, default choices) on two quiet cores, with what is compiled
once already in the cache counted as a fixed part. The rest grows with the multiply-adds of one token through the chosen
layers, and with the context that the phase runs. These are seconds of this computer, never of an NPU.
"""

from __future__ import annotations

from planner.plan import Choices
from reference.oracle.config import ModelConfig

# phase -> (fixed seconds: compiling, the fixture model; seconds that grow with the model), as measured on the demo model.
DEMO_SECONDS: dict[int, tuple[float, float]] = {
    0: (10.0, 20.0),
    1: (60.0, 60.0),
    2: (40.0, 20.0),
    3: (60.0, 180.0),
    4: (60.0, 200.0),  # two experiments kept, and the full gate
    5: (15.0, 30.0),  # one experiment, none kept; a kept one adds phase 3's time
    6: (10.0, 50.0),
    7: (120.0, 360.0),
}
DEMO_MACS = 134.5e6  # multiply-adds of one token through SmolLM2-135M, LM head included
OTHER_PHASE = (30.0, 60.0)


def token_macs(config: ModelConfig, layers: int | None = None) -> int:
    """Multiply-adds of one token: every linear weight of `layers` layers once, and the LM head. Attention is left out."""
    count = config.num_hidden_layers if layers is None else layers
    heads, groups, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    attention = config.hidden_size * dim * (2 * heads + 2 * groups)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return count * (attention + mlp) + config.hidden_size * config.vocab_size


def phase_seconds(config: ModelConfig, choices: Choices, phase: int) -> float:
    """Wall seconds of a phase on the twin on two quiet cores; within a factor of two where the demo model is near.

    Args:
        config: the deployed model. choices: its plan's choices (a partial deployment is quicker). phase: 0..7.
    """
    fixed, grows = DEMO_SECONDS.get(phase, OTHER_PHASE)
    layers = None if choices.layers is None else len(choices.layers)
    return fixed + grows * token_macs(config, layers) / DEMO_MACS
