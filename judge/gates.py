# SPDX-License-Identifier: Apache-2.0
"""The gates of phases 0, 1, 2, 3 and 6: pure functions from device outputs and oracle outputs to a verdict.

Gate ids in policy.toml:

    phase0.<subject>                 the oracle against its own proof
    phase1.<kernel>                  one kernel, at least three dispatches with changing data
    phase2.<subject>.<precision>     one block on real activations, per position and per head
    phase3.<subject>.<precision>     the model: teacher-forced texts, greedy tokens, prompts A, B, A
    phase7.<subject>.mixed           the same on the few fresh tokens that an evaluation draws
    phase6                           the runner repeats the recorded tokens

subject: "model" (a trained model) or "fixture" (the pack's own, which shows the faults that a trained model hides).
precision: how the linear layers' operands are stored: "bf16", "bfp16", or "mixed" (prefill in bfp16, decode and LM
head in bf16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from judge.logits import compare_logits
from judge.metrics import Comparison, Element, Failure, Figure, NamedFailure, compare, widen
from judge.policy import Limits, Policy
from judge.verdict import Finding, Verdict, decide

# What a block gate compares: the tap's name within the layer. "update" is residual2 - input: what the layer adds,
# which the residual stream would otherwise drown.
BLOCK_TAPS = ("k_rope", "qkv.v", "attn.out", "update")


@dataclass(frozen=True)
class Dispatch:
    """One run of a kernel: the device's output, started as `metrics.unwritten`, and the oracle's for the same data."""

    got: np.ndarray
    want: np.ndarray


@dataclass(frozen=True)
class TextRun:
    """Teacher-forced logits of one text: [positions, vocab] from device and oracle, and the token after each."""

    name: str
    got: np.ndarray
    want: np.ndarray
    next_ids: np.ndarray


@dataclass(frozen=True)
class GreedyRun:
    """Greedy tokens that the device chose after a prompt, with the logits [tokens, vocab] it chose them from.

    Generation does not stop at an end-of-text token here: a gate asks for a number of tokens and gets it.
    """

    name: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logits: np.ndarray


@dataclass(frozen=True)
class RepeatRun:
    """Prompts A, B, A in one process: generated ids and last logits [vocab] of each."""

    ids: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    logits: tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class OracleProof:
    """What phase 0 shows about the oracle of a model directory.

    keys_left, tensors_left: keys of config.json and tensors of the weights that nothing consumed.
    identity: k -> (logits of prefill(n + k), logits of prefill(n) and k decode steps), the last k rows of both.
    independent: logits [positions, vocab] of (the oracle, an independent implementation) on the same ids.
    perplexity: of the shipped text; None for weights that were made up, which have none worth a bound.
    """

    keys_total: int
    keys_left: tuple[str, ...]
    tensors_total: int
    tensors_left: tuple[str, ...]
    identity: Mapping[int, tuple[np.ndarray, np.ndarray]]
    independent: tuple[np.ndarray, np.ndarray]
    perplexity: float | None = None


# ids -> logits [len(ids), vocab] of the oracle
Teacher = Callable[[Sequence[int]], np.ndarray]


@dataclass
class Gathered:
    """What a gate gathers before it decides: prefix -> source -> comparison, and failures of its own."""

    comparisons: dict[str, dict[str, Comparison]] = field(default_factory=dict)
    failures: list[NamedFailure] = field(default_factory=list)

    def add(self, prefix: str, source: str, comparison: Comparison) -> None:
        self.comparisons.setdefault(prefix, {})[source] = comparison

    def fail(self, name: Failure, detail: str, positions: tuple[int, ...] = ()) -> None:
        self.failures.append(NamedFailure(name, detail, positions))


def judge_oracle(subject: str, proof: OracleProof, policy: Policy) -> Verdict:
    """Phase 0: every key and tensor consumed, prefill equals decode, an independent implementation agrees."""
    found = gather_oracle(proof, policy.limits)
    return decide(f"phase0.{subject}", found.comparisons, policy, failures=found.failures)


def gather_oracle(proof: OracleProof, limits: Limits) -> Gathered:
    """The proof as "identity/<metric>", "independent/<metric>" and, for trained weights, "perplexity"."""
    found = Gathered()
    for what, total, left in (
        ("keys of config.json", proof.keys_total, proof.keys_left),
        ("tensors", proof.tensors_total, proof.tensors_left),
    ):
        if total == 0:
            found.fail(Failure.EMPTY, f"no {what} were counted")
        if left:
            found.fail(Failure.NOT_CONSUMED, f"{what} that nothing consumed: {', '.join(left[:5])}")
    missing = [k for k in limits.identity_steps if k not in proof.identity]
    if missing:
        found.fail(Failure.TOO_FEW, f"prefill(n + k) against decode was not run for k = {missing}")
    for k, (prefill, decode) in proof.identity.items():
        found.add("identity", f"k={k}", compare_logits(decode, prefill, min_positions=k))
    found.add("independent", "", compare_logits(proof.independent[1], proof.independent[0]))
    if proof.perplexity is not None:
        found.add("", "shipped text", Comparison({"perplexity": Figure(proof.perplexity)}, positions=1))
    return found


def judge_kernel(kernel: str, dispatches: Sequence[Dispatch], policy: Policy) -> Verdict:
    """Phase 1: one kernel at one shape; every dispatch is compared, and no result may be the one before it again."""
    found = gather_kernel(dispatches, policy.limits)
    return decide(f"phase1.{kernel}", found.comparisons, policy, failures=found.failures)


def gather_kernel(dispatches: Sequence[Dispatch], limits: Limits) -> Gathered:
    """Every dispatch against its oracle, and against the dispatch before it."""
    found = Gathered()
    least = limits.kernel_dispatches
    if len(dispatches) < least:
        found.fail(Failure.TOO_FEW, f"{len(dispatches)} dispatches, at least {least} with changing data are needed")
    for index, dispatch in enumerate(dispatches):
        found.add("", f"dispatch {index}", compare(dispatch.got, dispatch.want))
    found.failures += _stale(dispatches)
    return found


def judge_block(
    subject: str, precision: str, got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], policy: Policy
) -> Verdict:
    """Phase 2: one transformer block.

    Args:
        got, want: tap name within the layer -> values, from the same block input; k_rope and qkv.v [n, kv_heads, d],
            attn.out [n, heads, d], and input and residual2 [n, hidden], from which the update is made.
    """
    found = gather_block(got, want, policy.limits)
    return decide(f"phase2.{subject}.{precision}", found.comparisons, policy, failures=found.failures)


def gather_block(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], limits: Limits) -> Gathered:
    """Every tap of BLOCK_TAPS, as "<tap>/<metric>"."""
    found = Gathered()
    for tap in BLOCK_TAPS:
        sides = [_tap(values, tap) for values in (got, want)]
        if sides[0] is None or sides[1] is None:
            found.fail(Failure.NOT_MEASURED, f"{tap} is missing from {'device' if sides[0] is None else 'oracle'} taps")
            continue
        if tap != "update" and sides[1].ndim != 3:
            found.fail(Failure.SHAPE_MISMATCH, f"{tap}: oracle {list(sides[1].shape)}, expected [n, heads, head_dim]")
            continue
        found.add(tap, tap, compare(sides[0], sides[1], min_positions=limits.block_positions))
    return found


def judge_model(
    subject: str,
    precision: str,
    texts: Sequence[TextRun],
    greedy: Sequence[GreedyRun],
    repeat: RepeatRun,
    teacher: Teacher,
    policy: Policy,
    *,
    phase: int = 3,
) -> Verdict:
    """Phase 3: the whole model. `teacher` gives the oracle's logits for the device's own tokens.

    phase: 7 for an evaluation, whose few fresh positions scatter more than phase 3's many, and have a gate of their own.
    A greedy run is judged at every step, also after its first divergence: the oracle is fed what the device chose.
    """
    found = gather_model(texts, greedy, repeat, teacher, policy.limits)
    return decide(f"phase{phase}.{subject}.{precision}", found.comparisons, policy, failures=found.failures)


def gather_model(
    texts: Sequence[TextRun], greedy: Sequence[GreedyRun], repeat: RepeatRun, teacher: Teacher, limits: Limits
) -> Gathered:
    """Teacher-forced texts as "text/<metric>", greedy runs as "decode/<metric>"; A, B, A has failures only."""
    found = gather_runs(texts, greedy, teacher, limits.text_positions, limits.greedy_tokens)
    _judge_repeat(found, repeat)
    return found


def gather_runs(
    texts: Sequence[TextRun],
    greedy: Sequence[GreedyRun],
    teacher: Teacher,
    positions: tuple[int, ...],
    tokens: tuple[int, ...],
) -> Gathered:
    """Texts and greedy runs, and whether they are as long as asked."""
    found = Gathered()
    _enough(found, "texts", [len(run.next_ids) for run in texts], positions)
    _enough(found, "greedy runs", [len(run.ids) for run in greedy], tokens)
    for run in texts:
        found.add("text", run.name, compare_logits(run.got, run.want, run.next_ids))
    for run in greedy:
        found.add("decode", run.name, _judge_greedy(found, run, teacher))
    return found


def judge_runner(produced: Sequence[int], recorded: Sequence[int], policy: Policy) -> Verdict:
    """Phase 6: the runner's tokens equal the recorded ones, all of them and no fewer than asked for."""
    least, failures = policy.limits.runner_tokens, []
    if not produced or not recorded:
        failures.append(NamedFailure(Failure.EMPTY, f"{len(produced)} tokens produced, {len(recorded)} recorded"))
    elif len(produced) != len(recorded) or len(produced) < least:
        detail = f"{len(produced)} tokens produced, {len(recorded)} recorded, {least} needed of both"
        failures.append(NamedFailure(Failure.TOO_FEW, detail))
    differ = [i for i, (a, b) in enumerate(zip(produced, recorded, strict=False)) if a != b]
    if differ:
        first = differ[0]
        detail = f"{len(differ)} tokens differ, the first is {produced[first]} where {recorded[first]} was recorded"
        failures.append(NamedFailure(Failure.DIVERGED, detail, tuple(differ[:5])))
    worst = tuple(Element((i,), float(produced[i]), float(recorded[i])) for i in differ[:5])
    findings = (Finding("tokens_differing", float(len(differ)), 0.0, 0.0),)
    return Verdict("phase6", not failures, findings, tuple(failures), worst, len(produced), 0.0, policy.sha256)


def _tap(values: Mapping[str, np.ndarray], tap: str) -> np.ndarray | None:
    if tap != "update":
        return values.get(tap)
    if "input" not in values or "residual2" not in values:
        return None
    start, end = widen(values["input"]), widen(values["residual2"])
    # An unwritten or NaN output must stay visible as what it is; arithmetic would make the pattern quiet.
    if start.shape != end.shape or not np.isfinite(end).all() or not end.any():
        return end
    return end.astype(np.float64) - start


def _stale(dispatches: Sequence[Dispatch]) -> list[NamedFailure]:
    """Results that are an earlier dispatch's again, and data that did not change between dispatches."""
    failures = []
    for later in range(1, len(dispatches)):
        now, before = dispatches[later], dispatches[later - 1]
        if now.want.size and np.array_equal(now.want, before.want):
            detail = f"dispatches {later - 1} and {later} have the same oracle output: the data must change"
            failures.append(NamedFailure(Failure.ORACLE_UNUSABLE, detail))
        elif now.got.size and now.got.shape == before.got.shape and now.got.tobytes() == before.got.tobytes():
            detail = f"dispatch {later} returned the result of dispatch {later - 1} again, though its data changed"
            failures.append(NamedFailure(Failure.STALE, detail, (later,)))
    return failures


def _enough(found: Gathered, what: str, counts: list[int], needed: tuple[int, ...]) -> None:
    """Runs sorted by length must each reach what is asked of the run of that rank."""
    if not any(counts):
        found.fail(Failure.EMPTY, f"no {what}")
    ranked = sorted(counts, reverse=True)
    short = len(ranked) < len(needed) or any(have < need for have, need in zip(ranked, needed, strict=False))
    if short:
        found.fail(Failure.TOO_FEW, f"{what} of lengths {ranked}, needed {list(needed)}")


def _judge_greedy(found: Gathered, run: GreedyRun, teacher: Teacher) -> Comparison:
    """The device's logits at each generated token against the oracle's after the same tokens."""
    if not run.ids or not run.prompt_ids:
        return Comparison(failures=(NamedFailure(Failure.EMPTY, f"{len(run.ids)} tokens generated"),))
    logits = widen(run.logits)
    if logits.ndim != 2 or len(logits) != len(run.ids):
        detail = f"logits {list(logits.shape)} for {len(run.ids)} tokens"
        return Comparison(failures=(NamedFailure(Failure.SHAPE_MISMATCH, detail),))
    ids = np.asarray(run.ids)
    want = teacher([*run.prompt_ids, *run.ids[:-1]])[-len(ids) :]
    outside = np.flatnonzero((ids < 0) | (ids >= want.shape[1]))
    if outside.size:
        detail = f"{run.name}: token {ids[outside[0]]} is outside the vocabulary of {want.shape[1]}"
        return Comparison(failures=(NamedFailure(Failure.OUTSIDE_VOCABULARY, detail, tuple(map(int, outside[:5]))),))
    compared = compare_logits(logits, want)
    if compared.failures:
        return compared
    sampled = np.flatnonzero(logits.argmax(axis=1) != ids)
    if sampled.size:
        detail = f"{run.name}: {sampled.size} tokens are not the argmax of their own logits: that is not greedy"
        found.fail(Failure.DIVERGED, detail, tuple(map(int, sampled[:5])))
    return _with_gap(compared, want.astype(np.float64), ids)


def _with_gap(compared: Comparison, want: np.ndarray, ids: np.ndarray) -> Comparison:
    """Add gap_max: how far the oracle ranks the chosen token below its own best, in rms of that row's logits."""
    best = want.max(axis=1)
    gap = (best - want[np.arange(len(ids)), ids]) / np.sqrt((want * want).mean(axis=1))
    place = int(gap.argmax())
    figures = compared.figures | {"gap_max": Figure(float(gap[place]), (place,))}
    return Comparison(figures, (), compared.worst, compared.signed_bias, compared.positions)


def _judge_repeat(found: Gathered, repeat: RepeatRun) -> None:
    """The second A must be the first A again, bit for bit, and B must be something else."""
    first, between, again = repeat.ids
    if not first or not between or not again or any(logits.size == 0 for logits in repeat.logits):
        found.fail(Failure.EMPTY, f"A, B, A of {len(first)}, {len(between)}, {len(again)} tokens")
        return
    if first != again or repeat.logits[0].tobytes() != repeat.logits[2].tobytes():
        differ = [i for i, (a, b) in enumerate(zip(first, again, strict=False)) if a != b]
        found.fail(Failure.STALE, "prompt A after B is not prompt A alone: the cache was not reset", tuple(differ[:5]))
    if first == between:
        found.fail(Failure.STALE, "prompts A and B gave the same tokens: the second run shows the first one's result")
