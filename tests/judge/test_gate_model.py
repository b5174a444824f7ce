# SPDX-License-Identifier: Apache-2.0
"""Gates of phases 0, 3 and 6: honest deployments pass, planted faults fail, and no sequence passes by being short."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from judge.evaluation import EvaluationLimits
from judge.gates import GreedyRun, OracleProof, RepeatRun, TextRun, judge_model, judge_oracle, judge_runner
from judge.measure_models import Probe, oracle_proof
from judge.metrics import Failure
from judge.model_faults import ORACLE_FAULTS, PLANT
from judge.policy import Policy
from judge.rounding_oracle import EXACT, PRECISIONS, Cache, RoundingDecoder
from judge.verdict import Verdict


class Deployment:
    """A device under the model gate: a rounding decoder that keeps one cache, as a runner does."""

    def __init__(self, decoder: RoundingDecoder, *, resets_cache: bool = True) -> None:
        self.decoder, self.resets_cache = decoder, resets_cache
        self.cache = Cache(512)

    def greedy(self, name: str, prompt: np.ndarray, count: int) -> GreedyRun:
        if self.resets_cache:
            self.cache = Cache(512)
        ids, rows, token = [], [], int(prompt[-1])
        self.decoder.logits(prompt[:-1], cache=self.cache)
        while len(ids) < count:
            rows.append(self.decoder.logits([token], cache=self.cache)[0])
            token = int(rows[-1].argmax())
            ids.append(token)
        return GreedyRun(name, tuple(int(i) for i in prompt), tuple(ids), np.stack(rows))


@cache
def oracle_logits(probe: Probe) -> tuple[np.ndarray, ...]:
    """The oracle's logits of the texts, once for all tests."""
    return tuple(probe.teacher(ids[:-1]) for ids in next(iter(probe.runs.values())).texts)


class Measured:
    """What phase 3 collects from a deployment, to be judged as it is or with one part replaced."""

    def __init__(self, probe: Probe, policy: Policy, deployment: Deployment) -> None:
        run = next(iter(probe.runs.values()))
        self.probe, self.policy = probe, policy
        self.texts = [
            TextRun(f"text {n}", deployment.decoder.logits(ids[:-1]), want, ids[1:])
            for n, (ids, want) in enumerate(zip(run.texts, oracle_logits(probe), strict=True))
        ]
        pairs = zip(policy.limits.greedy_tokens, run.prompts, strict=True)
        self.greedy = [deployment.greedy(f"prompt {n}", prompt, count) for n, (count, prompt) in enumerate(pairs)]
        a, b, again = (deployment.greedy("repeat", prompt, 4) for prompt in (*run.prompts[:2], run.prompts[0]))
        self.repeat = RepeatRun((a.ids, b.ids, again.ids), (a.logits[-1], b.logits[-1], again.logits[-1]))

    def judge(self, precision: str = "bf16", **replaced: object) -> Verdict:
        parts = {"texts": self.texts, "greedy": self.greedy, "repeat": self.repeat} | replaced
        return judge_model("fixture", precision, teacher=self.probe.teacher, policy=self.policy, **parts)


@pytest.fixture(scope="module")
def honest(probe: Probe, policy: Policy) -> Measured:
    return Measured(probe, policy, Deployment(probe.setting("bf16").decoder()))


def names(verdict: Verdict) -> set[Failure]:
    assert not verdict.passed
    return {failure.name for failure in verdict.failures}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_honest_deployment_passes_on_unseen_data(probe: Probe, policy: Policy, precision: str):
    measured = Measured(probe, policy, Deployment(probe.setting(precision).decoder()))
    verdict = measured.judge(precision)
    assert verdict.passed, verdict.lines()
    assert verdict.looked_at == 512 + 128 + 128 + 64 + 16 + 16


@pytest.mark.parametrize("fault", sorted(PLANT))
def test_a_planted_fault_fails_or_is_listed_as_caught_elsewhere(probe: Probe, policy: Policy, fault: str):
    gate = policy.gates["phase3.fixture.mixed"]
    if fault in gate.elsewhere:
        assert fault in policy.gates[gate.elsewhere[fault]].faults
        return
    wrong = Measured(probe, policy, Deployment(PLANT[fault](probe.setting("mixed")).decoder()))
    assert wrong.judge("mixed").missed


class Fresh:
    """What an evaluation collects: one window of text and two prompts, on ids that no floor was taken on."""

    def __init__(self, probe: Probe, policy: Policy, decoder: RoundingDecoder, seed: int) -> None:
        few, drawn = EvaluationLimits(), np.random.default_rng(seed)
        ids = drawn.integers(0, probe.config.vocab_size, few.text_positions + 1)
        prompts = [drawn.integers(0, probe.config.vocab_size, length) for length in (16, 27)]
        device = Deployment(decoder)
        self.texts = [TextRun("text", decoder.logits(ids[:-1]), probe.teacher(ids[:-1]), ids[1:])]
        self.greedy = [device.greedy(f"prompt {n}", prompt, few.greedy_tokens) for n, prompt in enumerate(prompts)]
        a, b, again = (device.greedy("repeat", prompt, 4) for prompt in (*prompts, prompts[0]))
        self.repeat = RepeatRun((a.ids, b.ids, again.ids), (a.logits[-1], b.logits[-1], again.logits[-1]))
        limits = msgspec.structs.replace(
            policy.limits, text_positions=(few.text_positions,), greedy_tokens=(few.greedy_tokens,) * few.prompts
        )
        self.teacher, self.policy = probe.teacher, msgspec.structs.replace(policy, limits=limits)

    def judge(self) -> Verdict:
        return judge_model("fixture", "mixed", self.texts, self.greedy, self.repeat, self.teacher, self.policy, phase=7)


@pytest.mark.parametrize("seed", [900, 901, 902])
def test_an_honest_deployment_passes_the_gate_of_an_evaluation(probe: Probe, policy: Policy, seed: int):
    verdict = Fresh(probe, policy, probe.setting("mixed").decoder(), seed).judge()
    assert verdict.passed, verdict.lines()
    assert verdict.looked_at == 64 + 16 + 16


@pytest.mark.parametrize("fault", sorted(PLANT))
def test_a_planted_fault_fails_the_gate_of_an_evaluation_or_is_caught_elsewhere(
    probe: Probe, policy: Policy, fault: str
):
    gate = policy.gates["phase7.fixture.mixed"]
    if fault in gate.elsewhere:
        assert fault in policy.gates[gate.elsewhere[fault]].faults
        return
    assert Fresh(probe, policy, PLANT[fault](probe.setting("mixed")).decoder(), 900).judge().missed


def test_a_cache_that_is_not_reset_fails(probe: Probe, policy: Policy):
    leaky = Measured(probe, policy, Deployment(probe.setting("bf16").decoder(), resets_cache=False))
    assert Failure.STALE in names(leaky.judge())


def test_fewer_positions_or_texts_than_asked_for_fail(honest: Measured):
    first = honest.texts[0]
    short = TextRun(first.name, first.got[:511], first.want[:511], first.next_ids[:511])
    assert names(honest.judge(texts=[short, *honest.texts[1:]])) == {Failure.TOO_FEW}
    assert names(honest.judge(texts=honest.texts[:2])) == {Failure.TOO_FEW}
    assert Failure.EMPTY in names(honest.judge(texts=[]))


# EG-01: sequences that a gate which stops at the first divergence lets through.


def test_an_empty_sequence_fails(honest: Measured):
    empty = replace(honest.greedy[0], ids=(), logits=honest.greedy[0].logits[:0])
    assert Failure.EMPTY in names(honest.judge(greedy=[empty, *honest.greedy[1:]]))


def test_no_sequences_at_all_fail(honest: Measured):
    assert Failure.EMPTY in names(honest.judge(greedy=[]))
    nothing = RepeatRun(((), (), ()), (np.zeros(0), np.zeros(0), np.zeros(0)))
    assert names(honest.judge(texts=[], greedy=[], repeat=nothing)) >= {Failure.EMPTY, Failure.TOO_FEW}


def test_a_sequence_that_stops_after_one_token_fails(honest: Measured):
    first = honest.greedy[0]
    short = replace(first, ids=first.ids[:1], logits=first.logits[:1])
    assert names(honest.judge(greedy=[short, *honest.greedy[1:]])) == {Failure.TOO_FEW}


@pytest.mark.parametrize("start", [0, 1, 40])
def test_garbage_after_an_early_divergence_fails(honest: Measured, start: int):
    """The device's own logits support its garbage: only the oracle, fed the same tokens, shows it."""
    first = honest.greedy[0]
    garbage = np.random.default_rng(start).standard_normal(first.logits[start:].shape).astype(np.float32)
    logits = np.concatenate([first.logits[:start], 5 * garbage])
    broken = replace(first, ids=tuple(int(i) for i in logits.argmax(axis=1)), logits=logits)
    verdict = honest.judge(greedy=[broken, *honest.greedy[1:]])
    assert "decode/gap_max" in {finding.metric for finding in verdict.missed}


def test_a_decode_path_that_returns_one_token_forever_fails(honest: Measured):
    """EG-02: token 0 comes from prefill and is right."""
    first = honest.greedy[0]
    logits = np.repeat(first.logits[:1], len(first.ids), axis=0)
    stuck = replace(first, ids=tuple(int(i) for i in logits.argmax(axis=1)), logits=logits)
    assert honest.judge(greedy=[stuck, *honest.greedy[1:]]).missed


def test_tokens_that_are_not_the_argmax_of_their_logits_fail(honest: Measured):
    """TG-08: sampling settings on one side of a greedy comparison."""
    first = honest.greedy[0]
    second_best = np.argsort(first.logits, axis=1)[:, -2]
    sampled = replace(first, ids=(*first.ids[:-1], int(second_best[-1])))
    assert Failure.DIVERGED in names(honest.judge(greedy=[sampled, *honest.greedy[1:]]))


def test_a_token_beyond_the_vocabulary_fails(honest: Measured):
    """TG-05: padding rows of the LM head hold stale values."""
    first = honest.greedy[0]
    padded = np.concatenate([first.logits, np.full((len(first.ids), 8), 1e3, np.float32)], axis=1)
    wild = replace(first, ids=(*first.ids[:-1], 515), logits=padded)
    assert names(honest.judge(greedy=[wild, *honest.greedy[1:]])) == {Failure.OUTSIDE_VOCABULARY}


def test_b_that_shows_a_again_fails(honest: Measured):
    a = honest.repeat
    assert Failure.STALE in names(honest.judge(repeat=replace(a, ids=(a.ids[0], a.ids[0], a.ids[2]))))


def test_a_repeat_that_differs_in_one_bit_fails(honest: Measured):
    first, between, again = honest.repeat.logits
    nudged = np.nextafter(again, np.inf)
    assert names(honest.judge(repeat=replace(honest.repeat, logits=(first, between, nudged)))) == {Failure.STALE}


# Phase 0


@pytest.fixture(scope="module")
def proof(probe: Probe, policy: Policy) -> OracleProof:
    return oracle_proof(probe, next(iter(probe.runs.values())).texts[0], policy.limits)


def test_an_honest_oracle_passes(proof: OracleProof, policy: Policy):
    verdict = judge_oracle("fixture", proof, policy)
    assert verdict.passed, verdict.lines()


@pytest.mark.parametrize("fault", ORACLE_FAULTS)
def test_an_oracle_with_a_fault_fails(probe: Probe, policy: Policy, fault: str):
    wrong = PLANT[fault](replace(probe.setting("bf16"), numerics=EXACT)).decoder()
    text = next(iter(probe.runs.values())).texts[0]
    assert judge_oracle("fixture", oracle_proof(probe, text, policy.limits, wrong), policy).missed


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"keys_left": ("sliding_window",)}, Failure.NOT_CONSUMED),
        ({"tensors_left": ("model.layers.0.mlp.down_proj.bias",)}, Failure.NOT_CONSUMED),
        ({"keys_total": 0}, Failure.EMPTY),
        ({"tensors_total": 0}, Failure.EMPTY),
        ({"identity": {}}, Failure.TOO_FEW),
    ],
)
def test_what_was_not_consumed_or_not_run_fails(
    proof: OracleProof, policy: Policy, change: dict[str, object], failure: Failure
):
    assert names(judge_oracle("fixture", replace(proof, **change), policy)) == {failure}


def test_a_trained_model_must_show_its_perplexity(proof: OracleProof, policy: Policy):
    assert Failure.NOT_MEASURED in names(judge_oracle("model", proof, policy))


def test_a_model_that_does_not_read_english_fails(proof: OracleProof, policy: Policy):
    verdict = judge_oracle("model", replace(proof, perplexity=5000.0), policy)
    assert "perplexity" in {finding.metric for finding in verdict.missed}


# Phase 6

RECORDED = tuple(range(100, 132))


def test_a_runner_that_repeats_the_recorded_tokens_passes(policy: Policy):
    assert judge_runner(RECORDED, RECORDED, policy).passed


@pytest.mark.parametrize(
    ("produced", "recorded", "failure"),
    [
        ((), RECORDED, Failure.EMPTY),
        ((), (), Failure.EMPTY),
        (RECORDED[:31], RECORDED, Failure.TOO_FEW),
        (RECORDED[:1], RECORDED[:1], Failure.TOO_FEW),
        ((*RECORDED[:31], 7), RECORDED, Failure.DIVERGED),
    ],
)
def test_a_runner_that_does_not_fails(
    policy: Policy, produced: tuple[int, ...], recorded: tuple[int, ...], failure: Failure
):
    assert names(judge_runner(produced, recorded, policy)) == {failure}


def test_a_verdict_reads_with_both_values(policy: Policy):
    lines = judge_runner((*RECORDED[:31], 7), RECORDED, policy).lines()
    assert lines[0] == "phase6: FAILED, 32 judged"
    assert any("device 7, oracle 131" in line for line in lines)
