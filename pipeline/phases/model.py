# SPDX-License-Identifier: Apache-2.0
"""Phase 3: all layers, prefill and decode, on texts, in greedy generation, and on prompts A, B, A in one process."""

from __future__ import annotations

from functools import partial

import numpy as np

from judge.gates import GreedyRun, RepeatRun, TextRun, judge_model
from judge.own_limits import judge_with_own_limits
from pipeline.context import PhaseContext, Subject
from pipeline.model_session import ModelSession
from pipeline.phases.outcome import Outcome
from pipeline.phases.own_runs import model_run
from pipeline.texts import prompt_ids, text_ids

TEXTS = (512, 128, 128)
GREEDY = (64, 16, 16)
REPEAT_TOKENS = 8


def run(ctx: PhaseContext) -> Outcome:
    """Judge the fixture and the model."""
    outcome = Outcome()
    for subject in (ctx.fixture, ctx.model):
        judge_subject(ctx, subject, outcome)
    return outcome


def judge_subject(ctx: PhaseContext, subject: Subject, outcome: Outcome) -> None:
    """Run texts, greedy prompts and A, B, A on one subject and judge them together."""
    session = subject.session()
    outcome.inputs[f"artifact {subject.name}"] = session.artifact.key
    texts = [text_run(ctx, subject, session, index, count) for index, count in enumerate(TEXTS)]
    greedy = []
    for index, count in enumerate(GREEDY):
        ctx.progress(f"phase 3: {subject.name}: {count} greedy tokens on prompt {index + 1}")
        greedy.append(greedy_run(session, f"prompt {index + 1}", prompt_ids(subject, index), count))
    ctx.progress(f"phase 3: {subject.name}: prompts A, B, A")
    repeat = repeat_run(session, [prompt_ids(subject, index) for index in (0, 1, 0)])
    verdict = judge_with_own_limits(
        partial(judge_model, subject.thresholds, "mixed", texts, greedy, repeat, lambda ids: subject.logits(list(ids))),
        ctx.policy,
        model_run(subject, ctx.policy.limits, texts=dict(enumerate(TEXTS)), greedy=dict(enumerate(GREEDY))),
        ctx.progress,
    )
    outcome.add(subject.name, verdict, subject)
    if subject.name == "model":
        outcome.data["greedy"] = {"prompt_ids": list(greedy[0].prompt_ids), "ids": list(greedy[0].ids)}
        outcome.data["host_bytes_per_token"] = session.host_bytes_per_token


def text_run(ctx: PhaseContext, subject: Subject, session: ModelSession, index: int, count: int) -> TextRun:
    """Teacher-forced logits of one text, device and oracle."""
    ctx.progress(f"phase 3: {subject.name}: {count} teacher-forced positions of text {index + 1}")
    ids = text_ids(subject, index, count + 1)
    return TextRun(f"text {index + 1}", session.score(ids[:-1]), subject.logits(ids[:-1]), np.asarray(ids[1:]))


def greedy_run(session: ModelSession, name: str, prompt: list[int], count: int) -> GreedyRun:
    """Greedy decoding of `count` tokens from the device's own logits."""
    session.prefill(prompt[:-1])
    token, ids, rows = prompt[-1], [], []
    for _ in range(count):
        logits = session.decode(token)
        token = int(np.argmax(logits))
        ids.append(token)
        rows.append(logits)
    return GreedyRun(name, tuple(prompt), tuple(ids), np.stack(rows))


def repeat_run(session: ModelSession, prompts: list[list[int]]) -> RepeatRun:
    """The same process, three prompts: what the cache remembers must not show."""
    runs = [greedy_run(session, "repeat", prompt, REPEAT_TOKENS) for prompt in prompts]
    first, second, third = runs
    return RepeatRun((first.ids, second.ids, third.ids), (first.logits[-1], second.logits[-1], third.logits[-1]))
