# SPDX-License-Identifier: Apache-2.0
"""A model of which no width divides: hidden 112, inner 240, 3 query heads and 1 KV head, vocabulary 500."""

from __future__ import annotations

import numpy as np
import pytest

from judge.logits import compare_logits
from judge.policy import load_policy
from kernels.designs.design import NUMPY_DTYPE
from pipeline.context import Subject
from tests.faults.deployed import subject
from tests.stand_ins.models import write_stand_in

pytestmark = pytest.mark.slow

BF16 = NUMPY_DTYPE["bf16"]
HIDDEN, VOCAB = 112, 500


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    directory = write_stand_in(
        tmp_path_factory.mktemp("model"), hidden_size=HIDDEN, intermediate_size=240, num_attention_heads=3,
        num_key_value_heads=1, head_dim=32, vocab_size=VOCAB, num_hidden_layers=2,
    )  # fmt: skip
    return subject(directory=directory)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 64)]


def test_every_padded_width_is_larger_than_the_true_one(tested: Subject) -> None:
    w = tested.session().plan.widths
    assert (w.hidden, w.intermediate, w.vocab, w.pad_heads) == (128, 256, 512, 1)


def test_prefill_and_decode_agree_with_the_oracle(tested: Subject, ids: list[int]) -> None:
    session, want = tested.session(), tested.logits(ids)
    limits = load_policy().of("phase3.fixture.mixed")
    text = compare_logits(session.score(ids), want).figures
    assert text["logits_abs"].value <= limits["text/logits_abs"].threshold
    session.prefill(ids[:40])
    decoded = np.stack([session.decode(token) for token in ids[40:]])
    figures = compare_logits(decoded, want[40:]).figures
    assert figures["logits_abs"].value <= limits["decode/logits_abs"].threshold


def test_padding_columns_do_not_reach_true_ones(tested: Subject, ids: list[int]) -> None:
    """1e4 in the columns beyond the true width of every input row changes no bit of any true column."""
    session = tested.session()
    w = session.plan.widths
    entry = session.plan.entry("prefill_64")

    def outputs(poison: float) -> bytes:
        hidden = session.packer.embedding(np.asarray(ids))
        hidden[:, HIDDEN:] = poison
        session.reset()
        session.run_rows(entry, hidden)
        session.append_prefill(entry, 63)
        after = session.read(entry.values["output"], (64, w.hidden))[:, :HIDDEN]
        step = session.decode_rows(hidden[63:])
        logits = session.read(step.values["logits"], (VOCAB,))
        return after.tobytes() + logits.tobytes()

    assert outputs(0.0) == outputs(1e4)
