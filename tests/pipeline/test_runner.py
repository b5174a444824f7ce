# SPDX-License-Identifier: Apache-2.0
"""The runner: what it refuses, when it stops, and that rows which pad the vocabulary are never sampled."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pipeline import model_session
from pipeline.model_session import ModelSession
from pipeline.runner import Runner
from refusal import Refusal
from tests.faults.deployed import Tensors, model_directory, subject
from tests.faults.plant import planted_python
from tests.pipeline.sessions import CONTEXT, drawn, shared, stepped

VOCAB = 500  # padded to 512


def tokens(runner: Runner, prompt: list[int], count: int) -> list[int]:
    return [token for token, _ in runner.stream(prompt, count)]


# ---- prompts ----


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([], 4, "an empty prompt"),
        ([3, 512], 4, "token id 512"),
        ([3, -1], 4, "token id -1"),
        (drawn(1, CONTEXT), 2, "256 prompt tokens and 2 new ones"),
        (drawn(1, CONTEXT - 6), 8, "250 prompt tokens and 8 new ones"),
        (drawn(1, CONTEXT + 1), 1, "257 prompt tokens and 1 new ones"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused(prompt: list[int], count: int, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        next(Runner(shared(), None).stream(prompt, count))


@pytest.mark.parametrize(("length", "count"), [(CONTEXT - 6, 7), (CONTEXT, 1)])
def test_the_context_can_be_filled_to_its_last_position(length: int, count: int) -> None:
    assert len(tokens(Runner(shared(), None), drawn(2, length), count)) == count
    assert shared().length == CONTEXT


def test_greedy_tokens_are_the_argmax_of_the_logits_that_come_with_them() -> None:
    runner, prompt = Runner(shared(), None), drawn(3, 20)
    answered = list(runner.stream(prompt, 6))
    ids = [token for token, _ in answered]
    assert ids == [int(np.argmax(logits)) for _, logits in answered]
    again = stepped(shared(), prompt + ids[:-1], len(prompt) - 1)
    assert again.tobytes() == np.stack([logits for _, logits in answered]).tobytes()


@pytest.mark.parametrize("length", [1, 2])
def test_the_shortest_prompts_are_answered(length: int) -> None:
    assert len(tokens(Runner(shared(), None), drawn(4, length), 3)) == 3


def test_prompts_a_b_a_get_the_same_answers_as_alone() -> None:
    runner, a, b = Runner(shared(), None), drawn(5, 30), drawn(6, 3)
    first, between, again = (tokens(runner, prompt, 8) for prompt in (a, b, a))
    assert first == again != between


# ---- end of text ----


def ending_at(*ids: int) -> SimpleNamespace:
    return SimpleNamespace(eos_ids=frozenset(ids), mask_padding=lambda logits: logits)


def test_generation_ends_with_any_of_the_end_of_text_tokens() -> None:
    prompt = drawn(7, 20)
    free = tokens(Runner(shared(), None), prompt, 8)
    stop = next(i for i, token in enumerate(free) if token not in free[:i] and i >= 2)
    unused = next(token for token in range(512) if token not in free)
    assert tokens(Runner(shared(), ending_at(unused, free[stop])), prompt, 8) == free[: stop + 1]
    unstopped = Runner(shared(), ending_at(free[stop])).stream(prompt, 8, stop=False)
    assert [token for token, _ in unstopped] == free


def test_ids_that_the_tokenizer_lacks_are_not_sampled_and_a_gate_still_sees_the_models_own_choice() -> None:
    prompt = drawn(7, 20)
    free = tokens(Runner(shared(), None), prompt, 8)
    known = max(free)  # the tokenizer ends just below the largest id that the model chose

    def mask_padding(logits: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(logits)) < known, logits, -np.inf)

    runner = Runner(shared(), SimpleNamespace(eos_ids=frozenset(), mask_padding=mask_padding))
    assert max(tokens(runner, prompt, 8)) < known
    assert [token for token, _ in runner.stream(prompt, 8, stop=False)] == free


# ---- vocabulary ----


def cut_vocabulary(tensors: Tensors) -> Tensors:
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:VOCAB]
    return tensors


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> ModelSession:
    """A session of 500 tokens whose 12 padding rows of the packed head are as large as can be, in both signs."""
    directory = model_directory(tmp_path_factory.mktemp("cut") / "model", {"vocab_size": VOCAB}, cut_vocabulary)
    session = subject(directory=directory).session()
    for item in session.plan.weights:
        if item.logical == "lm_head" and item.layout == "gemv":
            rows = np.zeros((512, session.plan.widths.hidden), np.float32)
            rows[:VOCAB] = session.packer.matrix("lm_head")
            assert not rows[VOCAB:].any()
            rows[VOCAB:] = np.where(np.arange(512 - VOCAB) % 2, 50.0, -50.0)[:, None]
            session.session.write("weights", item.slice.offset_bytes, item.design.pack(rows))
    return session


def test_rows_that_pad_the_vocabulary_are_never_sampled(poisoned: ModelSession) -> None:
    prompt = [token % VOCAB for token in drawn(8, 20)]
    answered = list(Runner(poisoned, None).stream(prompt, 12))
    assert all(len(logits) == VOCAB for _, logits in answered)
    assert all(token < VOCAB for token, _ in answered)


def test_a_runner_that_reads_the_padded_row_would_sample_them(poisoned: ModelSession) -> None:
    edit = (
        'entry.values["logits"], (self.plan.widths.vocab_valid,)',
        'entry.values["logits"], (self.plan.widths.vocab,)',
    )
    with planted_python(model_session, edit):
        answered = tokens(Runner(poisoned, None), [token % VOCAB for token in drawn(8, 20)], 1)
    assert answered[0] >= VOCAB
