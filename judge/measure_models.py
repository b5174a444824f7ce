# SPDX-License-Identifier: Apache-2.0
"""Floors and faults of the oracle, block and model gates, from the independent rounding oracle.

A `Probe` is one model with token ids to run on. The protocol is that of the phases: block gates start from the
oracle's own stream, 64 prefilled and 8 decoded positions; model gates score texts in one prefill and decode greedily.
Faults may be run on shorter texts: a worst place over fewer positions is smaller, so the weakest value stays honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from judge.evaluation import EvaluationLimits
from judge.gates import (
    Gathered,
    GreedyRun,
    OracleProof,
    RepeatRun,
    Teacher,
    TextRun,
    gather_block,
    gather_model,
    gather_oracle,
)
from judge.logits import perplexity
from judge.measurement import Measurement, figures_of
from judge.model_faults import BLOCK_FAULTS, ORACLE_FAULTS, PLANT, Setting
from judge.policy import Limits
from judge.rounding_oracle import EXACT, PRECISIONS, Cache, Operands, RoundingDecoder
from reference.oracle import Decoder, ModelConfig, TapRecorder, Weights

DECODE_STEPS = 8
INDEPENDENT_POSITIONS = 48
IDENTITY_START = 24
# KL and correlation between two FP32 results are differences of rounding errors, which another BLAS changes.
ORACLE_FIGURES = ("logits_abs", "rel", "top1_miss", "perplexity")


@dataclass(frozen=True)
class Run:
    """Token ids of one seed: as many texts and prompts as the model gate takes."""

    texts: tuple[np.ndarray, ...]
    prompts: tuple[np.ndarray, ...]


@dataclass(eq=False)
class Probe:
    """A model under measurement.

    name: "fixture" or "model". runs: for each seed the texts and prompts, as token ids; texts are longer by one than
    the gate's positions. layers: which layers the block gate looks at. trained: whether perplexity means anything.
    """

    name: str
    config: ModelConfig
    weights: Weights
    runs: dict[int, Run]
    layers: tuple[int, ...]
    trained: bool
    measured_on: str
    # seed -> further ids on which the oracle's and the block gate's floors are taken, the latter at every layer of
    # `floor_layers`: an evaluation draws ids of its own, and a floor from few draws would fail honest work by chance.
    windows: dict[int, np.ndarray] = field(default_factory=dict)
    floor_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.oracle = Decoder(self.config, self.weights)
        self.operands: Operands = {}

    def setting(self, precision: str) -> Setting:
        return Setting(self.config, self.weights, PRECISIONS[precision], operands=self.operands)

    def teacher(self, ids: Sequence[int]) -> np.ndarray:
        return self.oracle.prefill(list(ids), cache=self.oracle.new_cache(len(ids)))

    def measurement(self, gate: str, elsewhere: tuple[str, ...], *, windows: bool = True) -> Measurement:
        model = self.config.model_dir.name if self.trained else ""
        seeds = (*self.runs, *self.windows) if windows else tuple(self.runs)
        return Measurement(gate, seeds, self.measured_on, elsewhere=elsewhere, model=model)


def measure_oracle(probe: Probe, limits: Limits) -> Measurement:
    """Phase 0: FP32 oracle against FP64 second implementation; prefill against decode; perplexity."""
    measured = probe.measurement(f"phase0.{probe.name}", () if probe.name == "fixture" else ("phase0.fixture",))
    measured.only = ORACLE_FIGURES
    for run in probe.runs.values():
        proof = oracle_proof(probe, run.texts[0], limits)
        measured.add_floor(figures_of(gather_oracle(proof, limits), honest=True))
    for ids in probe.windows.values():
        # The bound of perplexity is of the shipped text, not of any window.
        proof = replace(oracle_proof(probe, ids, limits), perplexity=None)
        measured.add_floor(figures_of(gather_oracle(proof, limits), honest=True))
    text = next(iter(probe.runs.values())).texts[0]
    for fault in ORACLE_FAULTS:
        planted = PLANT[fault](replace(probe.setting("bf16"), numerics=EXACT)).decoder()
        measured.add_fault(fault, figures_of(gather_oracle(oracle_proof(probe, text, limits, planted), limits)))
    return measured


def oracle_proof(probe: Probe, text: np.ndarray, limits: Limits, faulty: RoundingDecoder | None = None) -> OracleProof:
    """The proof of the probe's oracle; with `faulty` that decoder stands in the oracle's place.

    The stand-in is FP64, so that its fault is all that differs; its perplexity is of fewer positions.
    """
    head = text[:INDEPENDENT_POSITIONS]
    independent = replace(probe.setting("bf16"), numerics=EXACT).decoder().logits(head)
    ids = text[: IDENTITY_START + max(limits.identity_steps) + 1]
    start, rest = ids[:IDENTITY_START], ids[IDENTITY_START:]
    if faulty is None:
        logits, words = probe.teacher, text[: limits.text_positions[0] + 1]
        cache = probe.oracle.new_cache(len(ids))
        probe.oracle.prefill(start, cache=cache)
        decoded = np.stack([probe.oracle.decode(int(token), cache=cache) for token in rest])
    else:
        logits, words = faulty.logits, text[: limits.text_positions[1] + 1]
        decoded = faulty.decode(start, rest)
    whole = logits(ids)[IDENTITY_START:]
    identity = {k: (whole[:k], decoded[:k]) for k in limits.identity_steps}
    read = perplexity(logits(words[:-1]), words[1:]) if probe.trained else None
    return OracleProof(1, (), 1, (), identity, (logits(head), independent), read)


def measure_block(probe: Probe, precision: str, limits: Limits) -> Measurement:
    """Phase 2. "mixed": 64 positions prefilled in bfp16, 8 decoded in bf16, of which the decoded ones are judged."""
    gate = f"phase2.{probe.name}.{precision}"
    measured = probe.measurement(gate, _elsewhere(probe, precision, "phase2"))
    for index, run in enumerate(probe.runs.values()):
        ids = run.texts[0][: limits.block_positions + DECODE_STEPS]
        for layer in probe.layers:
            want = oracle_block(probe, layer, ids)
            setting = probe.setting(precision)
            measured.add_floor(figures_of(run_block(setting, layer, want, precision, limits), honest=True))
            for fault in BLOCK_FAULTS if index == 0 else ():
                wrong = PLANT[fault](replace(setting, layer=layer))
                if precision == "mixed" and fault == "mask_ahead":
                    continue  # a decode step has no future position to see
                measured.add_fault(fault, figures_of(run_block(wrong, layer, want, precision, limits)))
    for ids in probe.windows.values():
        for layer in probe.floor_layers:
            want = oracle_block(probe, layer, ids[: limits.block_positions + DECODE_STEPS])
            honest = run_block(probe.setting(precision), layer, want, precision, limits)
            measured.add_floor(figures_of(honest, honest=True))
    return measured


def oracle_block(probe: Probe, layer: int, ids: np.ndarray) -> dict[str, np.ndarray]:
    """A block's oracle taps on real activations: the full FP32 run up to that layer."""
    taps = ("input", "k_rope", "qkv.v", "attn.out", "residual2")
    recorder = TapRecorder(*(f"layers.{layer}.{tap}" for tap in taps))
    probe.oracle.prefill(ids, cache=probe.oracle.new_cache(len(ids)), tap=recorder, layers=layer + 1, last_only=True)
    want = {tap: recorder[f"layers.{layer}.{tap}"] for tap in taps}
    want["attn.out"] = want["attn.out"].reshape(len(ids), probe.config.num_attention_heads, -1)
    return want


def run_block(setting: Setting, layer: int, want: dict[str, np.ndarray], precision: str, limits: Limits) -> Gathered:
    """The block gate's comparisons for a block of this setting."""
    return gather_block(*block_taps(setting, layer, want, precision, limits), limits)


def block_taps(
    setting: Setting, layer: int, want: dict[str, np.ndarray], precision: str, limits: Limits
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(got, want) of the block gate: as many positions as it looks at, and in "mixed" the decoded ones behind."""
    first = limits.block_positions
    decoder, cache = setting.decoder(), Cache(len(want["input"]) + 1)
    got = _block_taps(decoder, layer, want["input"][:first], cache)
    if precision != "mixed":
        return got, {tap: value[:first] for tap, value in want.items()}
    steps = []
    for row in want["input"][first:]:
        cache.length = first + len(steps)
        steps.append(_block_taps(decoder, layer, row[None], cache))
    # The prefilled rows are the oracle's own, so that decode's error stands alone.
    return {tap: np.concatenate([want[tap][:first], *(step[tap] for step in steps)]) for tap in got}, want


def _block_taps(decoder: RoundingDecoder, layer: int, rows: np.ndarray, cache: Cache) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = {}
    decoder.layer(layer, decoder.stored(rows), cache, tap=lambda name, value: values.__setitem__(name, value))
    got = {tap: values[f"layers.{layer}.{tap}"] for tap in ("k_rope", "qkv.v", "attn.out", "residual2")}
    got["attn.out"] = got["attn.out"].reshape(len(rows), decoder.config.num_attention_heads, -1)
    return got | {"input": rows}


def measure_model(probe: Probe, precision: str, limits: Limits, *, short: bool = False) -> Measurement:
    """Phase 3. short: faults on fewer positions and tokens than the gate, for models that take long.

    Floors are taken on as many positions as the gate looks at: over the few of a window means scatter, which would loosen it.
    """
    gate = f"phase3.{probe.name}.{precision}"
    measured = probe.measurement(gate, _elsewhere(probe, precision, "phase3"), windows=False)
    setting = probe.setting(precision)
    full = (limits.text_positions, limits.greedy_tokens)
    runs = list(probe.runs.values())
    for run in runs:
        measured.add_floor(figures_of(run_model(probe.teacher, setting.decoder(), run, *full, limits), honest=True))
    sizes = ((limits.text_positions[1],), (limits.greedy_tokens[1],)) if short else full
    for fault, plant in PLANT.items():
        measured.add_fault(
            fault, figures_of(run_model(probe.teacher, plant(setting).decoder(), runs[0], *sizes, limits))
        )
    return measured


def measure_fresh(probe: Probe, precision: str, limits: Limits) -> Measurement:
    """Phase 7: as phase 3, on as little as an evaluation draws: one window of text, two prompts of fresh tokens."""
    phase3 = (f"phase3.{probe.name}.{precision}", *_elsewhere(probe, precision, "phase3"))
    measured = replace(probe.measurement(f"phase7.{probe.name}.{precision}", phase3), seeds=tuple(probe.windows))
    setting, drawn = probe.setting(precision), EvaluationLimits()
    sizes = ((drawn.text_positions,), (drawn.greedy_tokens,) * drawn.prompts)
    runs = [
        Run((ids,), (ids[: drawn.prompt_tokens[0]], ids[-drawn.prompt_tokens[1] :])) for ids in probe.windows.values()
    ]
    for run in runs:
        measured.add_floor(figures_of(run_model(probe.teacher, setting.decoder(), run, *sizes, limits), honest=True))
    for fault, plant in PLANT.items():
        measured.add_fault(
            fault, figures_of(run_model(probe.teacher, plant(setting).decoder(), runs[0], *sizes, limits))
        )
    return measured


def run_model(
    teacher: Teacher,
    decoder: RoundingDecoder,
    run: Run,
    texts: tuple[int, ...],
    greedy: tuple[int, ...],
    limits: Limits,
) -> Gathered:
    """The model gate's comparisons for one deployment, here a rounding decoder."""
    scored = [
        TextRun(f"text {index}", decoder.logits(ids[:count]), teacher(ids[:count]), ids[1 : count + 1])
        for index, (count, ids) in enumerate(zip(texts, run.texts, strict=False))
    ]
    generated = []
    for index, (count, ids) in enumerate(zip(greedy, run.prompts, strict=False)):
        prompt = tuple(int(token) for token in ids)
        generated.append(GreedyRun(f"prompt {index}", prompt, *decoder.greedy(prompt, count)))
    nothing = RepeatRun(((), (), ()), (np.zeros(0), np.zeros(0), np.zeros(0)))
    return gather_model(scored, generated, nothing, teacher, limits)


def _elsewhere(probe: Probe, precision: str, phase: str) -> tuple[str, ...]:
    """The gates that catch what this one hides: the fixture's, the bf16 one, the kernel's."""
    fixture = () if probe.name == "fixture" else (f"{phase}.fixture.{precision}",)
    bf16 = () if precision == "bf16" else (f"{phase}.fixture.bf16",)
    return (*fixture, *bf16, *((f"{phase}.fixture.bf16",) if probe.name != "fixture" else ()), "phase1.gemm_bf16")
