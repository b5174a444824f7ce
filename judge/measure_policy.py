# SPDX-License-Identifier: Apache-2.0
"""Measure the floors and faults of the gates and write policy.toml.

    python -m judge.measure_policy                          print what would be written, for every gate of the fixture
    python -m judge.measure_policy --gate phase1.rope       one gate (or all that begin so)
    python -m judge.measure_policy --model DIR --write      also the gates of a trained model; write the file

Without --model the gates of a trained model keep the numbers that the file has.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from judge.fixture import CONFIG, write_fixture
from judge.kernel_cases import SHAPES
from judge.measure_kernels import measure_kernel
from judge.measure_models import Probe, Run, measure_block, measure_fresh, measure_model, measure_oracle
from judge.measurement import Measurement, select
from judge.policy import POLICY_PATH, GatePolicy, Limits, check_rule, load_policy
from judge.prompts import load_prompts
from judge.rounding_oracle import PRECISIONS
from reference.oracle import load_config, open_weights
from reference.oracle.tokenizer import load_tokenizer
from reference.texts import texts as shipped_texts
from refusal import Refusal

LIMITS = Limits(
    kernel_dispatches=3,
    block_positions=64,
    text_positions=(512, 128, 128),
    greedy_tokens=(64, 16, 16),
    runner_tokens=32,
    identity_steps=(1, 2, 17),
)
FIXTURE_SEEDS = tuple(range(8))
FIXTURE_LAYER = 1
# Draws of the block gates' floors beside the runs': seeds 100, 101, ...
FIXTURE_WINDOWS = tuple(range(100, 148))
MODEL_WINDOWS = tuple(range(100, 116))
WINDOW_TOKENS = 80


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write on request; returns the exit code."""
    parser = argparse.ArgumentParser(prog="judge.measure_policy", description=__doc__.splitlines()[0])
    parser.add_argument("--gate", default="", help="measure only gates that begin with this")
    parser.add_argument("--model", type=Path, help="directory of a trained model")
    parser.add_argument("--write", action="store_true", help="write judge/policy.toml")
    options = parser.parse_args(arguments)
    try:
        gates = dict(load_policy().gates) if POLICY_PATH.exists() else {}
        for measured in measurements(options.gate, options.model):
            gates[measured.gate] = select(measured, gates)
            print("\n".join(_gate_lines(gates[measured.gate])), flush=True)
        check_rule(gates, "measured")
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    if options.write:
        partial = POLICY_PATH.with_suffix(".tmp")
        partial.write_text(policy_text(gates))
        partial.replace(POLICY_PATH)
    return 0


def measurements(prefix: str, model_dir: Path | None) -> Iterator[Measurement]:
    """Every gate whose id begins with the prefix; a gate comes after those that catch what it cannot show."""
    wanted = [kernel for kernel in SHAPES if f"phase1.{kernel}".startswith(prefix)]
    # The kernels that others refer to are first.
    for kernel in sorted(wanted, key=lambda name: name not in ("gemm_bf16", "attention_prefill", "silu_mul")):
        yield measure_kernel(kernel, LIMITS)
    probes = [fixture_probe()] if not prefix.startswith("phase1") else []
    if model_dir is not None:
        probes.append(model_probe(model_dir))
    for probe in probes:
        yield from _probe_measurements(probe, prefix)


def _probe_measurements(probe: Probe, prefix: str) -> Iterator[Measurement]:
    if f"phase0.{probe.name}".startswith(prefix):
        yield measure_oracle(probe, LIMITS)
    for precision in PRECISIONS:
        if f"phase2.{probe.name}.{precision}".startswith(prefix):
            yield measure_block(probe, precision, LIMITS)
        if f"phase3.{probe.name}.{precision}".startswith(prefix):
            yield measure_model(probe, precision, LIMITS, short=probe.trained)
    if f"phase7.{probe.name}.mixed".startswith(prefix):
        yield measure_fresh(probe, "mixed", LIMITS)


def fixture_probe() -> Probe:
    """The pack's fixture, on ids drawn as the phases draw them for a model without tokenizer."""
    folder = write_fixture(Path(tempfile.mkdtemp(prefix="fixture_")))
    config = load_config(folder)
    runs = {}
    for seed in FIXTURE_SEEDS:
        rng = np.random.default_rng(seed)
        drawn = tuple(rng.integers(0, CONFIG["vocab_size"], count + 1) for count in LIMITS.text_positions)
        runs[seed] = Run(drawn, tuple(rng.integers(0, CONFIG["vocab_size"], length) for length in (24, 31, 38)))
    windows = {
        seed: np.random.default_rng(seed).integers(0, CONFIG["vocab_size"], WINDOW_TOKENS) for seed in FIXTURE_WINDOWS
    }
    on = "the fixture model (judge/fixture.py, seed 1), token ids drawn"
    layers = tuple(range(CONFIG["num_hidden_layers"]))
    return Probe("fixture", config, open_weights(config), runs, (FIXTURE_LAYER,), False, on, windows, layers)


def model_probe(model_dir: Path) -> Probe:
    """A trained model on the shipped texts: as the phases take them (seed 0), and on other windows of them."""
    config = load_config(model_dir)
    tokenizer = load_tokenizer(config)
    prompts = tuple(np.array(tokenizer.encode(prompt.text)) for prompt in load_prompts().greedy)
    whole = [np.array(tokenizer.encode(text.content)) for text in shipped_texts()]
    joined = np.concatenate([*whole[1:], whole[0]])
    runs = {
        0: Run(tuple(whole), prompts),
        1: Run((joined, whole[0][200:], whole[2][100:]), (whole[0][40:64], whole[1][8:40], whole[2][30:60])),
    }
    last = config.num_hidden_layers - 1
    layers = tuple(sorted({0, config.num_hidden_layers // 2, last}))
    # A deployment of fewer layers is judged at layers of its own, so that honest work must pass at each.
    every = tuple(range(config.num_hidden_layers))
    on = f"{model_dir.name}, texts of reference/texts, layers {list(layers)}, block floors at every layer"
    starts = np.linspace(0, len(joined) - WINDOW_TOKENS, len(MODEL_WINDOWS)).astype(int)
    windows = {seed: joined[start : start + WINDOW_TOKENS] for seed, start in zip(MODEL_WINDOWS, starts, strict=True)}
    return Probe("model", config, open_weights(config), runs, layers, True, on, windows, every)


def policy_text(gates: dict[str, GatePolicy]) -> str:
    """policy.toml: one line a threshold."""
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Written by `python -m judge.measure_policy --write`; the rule is in judge/policy.py, and a test recomputes.",
        "",
        "[limits]",
    ]
    for name in LIMITS.__struct_fields__:
        value = getattr(LIMITS, name)
        lines.append(f"{name} = {list(value) if isinstance(value, tuple) else value}")
    for name in sorted(gates):
        lines += ["", *_gate_lines(gates[name])]
    return "\n".join(lines) + "\n"


def _gate_lines(gate: GatePolicy) -> list[str]:
    elsewhere = ", ".join(f"{fault} = {json.dumps(other)}" for fault, other in gate.elsewhere.items())
    lines = [
        "[[gate]]",
        f'gate = "{gate.gate}"',
        f"faults = {json.dumps(list(gate.faults))}",
        f"elsewhere = {{ {elsewhere} }}" if elsewhere else "elsewhere = {}",
        f"floor_seeds = {list(gate.floor_seeds)}",
        f'measured = "{gate.measured}"',
        f'measured_on = "{gate.measured_on}"',
        "thresholds = [",
    ]
    for row in gate.thresholds:
        numbers = f"threshold = {row.threshold!r}, floor = {row.floor!r}"
        fault = f'weakest_fault = "{row.weakest_fault}", weakest_value = {row.weakest_value!r}'
        catches = json.dumps(list(row.catches))
        lines.append(f'  {{ metric = "{row.metric}", {numbers}, {fault}, catches = {catches} }},')
    return [*lines, "]"]


if __name__ == "__main__":
    sys.exit(main())
