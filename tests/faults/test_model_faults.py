# SPDX-License-Identifier: Apache-2.0
"""Phase 3: faults that need all layers, a prefill before a decode, or three prompts in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from judge.verdict import Verdict
from pipeline import model_session
from pipeline.context import PhaseContext, Subject
from pipeline.phases import model
from pipeline.phases.outcome import Outcome
from planner import graph
from planner.plan import Choices
from tests.faults.deployed import context, model_directory, subject
from tests.faults.plant import Edit, planted_python
from tests.faults.test_block_faults import swap_layers

# The phase asks for 512 teacher-forced positions; one bucket of each kind keeps the module small. The cache has room for a
# runner that never starts afresh.
CHOICES = Choices(prefill_buckets=(512,), decode_buckets=(2048,), context=2048, score_bucket=512)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PhaseContext:
    return context(tmp_path_factory.mktemp("deployments"), CHOICES)


@pytest.fixture(scope="module")
def honest() -> Subject:
    """The fixture model as it should be, on one open session."""
    return subject(CHOICES)


def phase3(ctx: PhaseContext, tested: Subject) -> Verdict:
    outcome = Outcome()
    model.judge_subject(ctx, tested, outcome)
    return outcome.verdicts["fixture"]


def failed(verdict: Verdict) -> set[str]:
    """ "text" and "decode", as far as their figures miss, and the names of failures."""
    return {f.metric.split("/")[0] for f in verdict.missed} | {str(f.name) for f in verdict.failures}


def test_the_unplanted_model_passes(ctx: PhaseContext, honest: Subject) -> None:
    verdict = phase3(ctx, honest)
    assert verdict.passed, "\n".join(verdict.lines())


APPEND_PREFILL = "self._append(place, 0, kv)"
APPEND_DECODE = "self._append(place, position, kv[place])"
FORGET = '"""Forget the context: the next token stands at position 0."""\n        self.length = 0'


# The plants take hold of the open session: its class runs the edited code.
@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([(APPEND_PREFILL, "self._append(place, 1, kv)")], {"decode"}),
        ([(APPEND_DECODE, "self._append(place, position + 1, kv[place])")], {"decode"}),
        ([("self.length = count\n", "self.length = count + 1\n")], {"decode"}),
        (
            [
                (FORGET, FORGET.replace("self.length = 0", "pass")),
                (APPEND_PREFILL, "self._append(place, self.length, kv)"),
                ("self.length = count\n", "self.length += count\n"),
            ],
            {"decode", "stale"},
        ),
    ],
    ids=["prefill_row_late", "decode_row_late", "length_off_by_one", "cache_not_reset"],
)
def test_a_runner_fault_is_caught(ctx: PhaseContext, honest: Subject, edits: list[Edit], expected: set[str]) -> None:
    with planted_python(model_session, *edits):
        assert expected <= failed(phase3(ctx, honest))


@pytest.mark.parametrize(
    ("config", "tensors"),
    [({"rope_theta": 100000.0}, None), ({"rms_norm_eps": 1e-6}, None), ({}, swap_layers)],
    ids=["theta_wrong", "eps_wrong", "weight_of_other_layer"],
)
def test_a_wrong_file_is_caught(
    ctx: PhaseContext, tmp_path: Path, config: dict[str, float], tensors: Callable | None
) -> None:
    wrong = model_directory(tmp_path / "wrong", config, *([tensors] if tensors else []))
    assert {"text", "decode"} <= failed(phase3(ctx, subject(CHOICES, deployed=wrong)))


def test_a_layer_that_starts_from_the_wrong_residual_is_caught(ctx: PhaseContext) -> None:
    with planted_python(graph, ('return calls, f"{p}.residual2"', 'return calls, f"{p}.down.out"')):
        assert "text" in failed(phase3(ctx, subject(CHOICES)))
