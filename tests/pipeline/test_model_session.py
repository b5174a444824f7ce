# SPDX-License-Identifier: Apache-2.0
"""A model on the twin: prompt lengths around a bucket, capacity of the cache, prefill against decode, A B A, padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from judge.logits import compare_logits
from judge.policy import load_policy
from kernels.attention_prefill import stage as attention_prefill
from kernels.designs.design import NUMPY_DTYPE
from pipeline.model_session import ModelSession
from refusal import Refusal
from tests.faults.deployed import subject
from tests.faults.plant import planted_source
from tests.pipeline.sessions import BUCKET, CONTEXT, drawn, shared, stepped

pytestmark = pytest.mark.slow

BF16 = NUMPY_DTYPE["bf16"]
GATE = "phase3.fixture.mixed"


def limit(metric: str) -> float:
    """The threshold of the phase 3 gate."""
    return load_policy().of(GATE)[f"decode/{metric}"].threshold


def oracle(ids: list[int]) -> np.ndarray:
    """FP32 logits [n, vocab]."""
    return subject().logits(ids)


# ---- prompt lengths ----


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
def test_a_prompt_of_any_length_is_continued_as_the_oracle_does(length: int) -> None:
    session, ids = shared(), drawn(length, length + 4)
    got = stepped(session, ids, length)
    assert session.length == length + 4
    figures = compare_logits(got, oracle(ids)[length:], min_positions=4).figures
    assert figures["kl_max"].value <= limit("kl_max")
    assert figures["logits_abs"].value <= limit("logits_abs")


def test_an_empty_prompt_leaves_an_empty_cache() -> None:
    session = shared()
    session.prefill(drawn(1, 10))
    assert session.prefill([]) is None
    assert session.length == 0


@pytest.mark.parametrize("steps", [1, 2, 17])
def test_prefill_of_more_tokens_equals_prefill_and_decode(steps: int) -> None:
    """The last step's logits, once from a cache that prefill filled and once from one that decode filled."""
    session, ids = shared(), drawn(40 + steps, 30 + steps + 1)
    decoded = stepped(session, ids, 30)[-1:]
    prefilled = stepped(session, ids, 30 + steps)
    # Both are one rounding path away from the oracle: apart they are at most what the gate grants to each.
    figures = compare_logits(decoded, prefilled, min_positions=1).figures
    assert figures["logits_abs"].value <= limit("logits_abs")
    assert figures["kl_max"].value <= limit("kl_max")


# ---- capacity ----


def test_the_last_position_of_the_cache_is_used_and_the_next_one_refused() -> None:
    session, ids = shared(), drawn(3, CONTEXT)
    session.prefill(ids[:-1])
    assert session.length == CONTEXT - 1
    logits = session.decode(ids[-1])
    assert session.length == CONTEXT
    figures = compare_logits(logits[None], oracle(ids)[-1:], min_positions=1).figures
    assert figures["logits_abs"].value <= limit("logits_abs")
    before = session.session.read("kv", 0, (session.plan.arenas.sizes["kv"],), np.uint16)
    with pytest.raises(Refusal, match="position 256"):
        session.decode(ids[0])
    assert session.length == CONTEXT
    assert np.array_equal(before, session.session.read("kv", 0, before.shape, np.uint16))


@pytest.mark.parametrize("length", [CONTEXT + 1, CONTEXT + 100])
def test_a_prompt_longer_than_the_cache_is_refused_before_any_work(length: int) -> None:
    session = shared()
    before = len(list(session.session.log()))
    with pytest.raises(Refusal, match=f"{length} tokens"):
        session.prefill(drawn(4, length))
    assert len(list(session.session.log())) == before


def test_more_tokens_than_the_score_bucket_are_refused() -> None:
    with pytest.raises(Refusal, match="65 tokens to score"):
        shared().score(drawn(5, BUCKET + 1))


def test_a_row_of_one_layer_stays_in_that_layers_cache() -> None:
    """The last rows of the cache go where they belong: every other layer's and head's rows are as before."""
    session, ids = shared(), drawn(6, CONTEXT)
    session.prefill(ids[:-1])
    size = session.plan.arenas.sizes["kv"]
    before = session.session.read("kv", 0, (size,), np.uint16)
    session.decode(ids[-1])
    changed = np.flatnonzero(before != session.session.read("kv", 0, (size,), np.uint16))
    w, layers = session.plan.widths, len(session.plan.layers)
    assert len(changed) <= layers * 2 * w.kv_heads * w.head_dim
    # [layer][KV head][group of 128][K|V][128][D]: each change is in the last row of the last group
    rows = changed // w.head_dim
    assert set(rows % 128) == {127}
    assert set(rows // 256 % (CONTEXT // 128)) == {CONTEXT // 128 - 1}


# ---- nothing remembered, nothing leaked ----


def test_prompts_a_b_a_give_identical_bits() -> None:
    session, a, b = shared(), drawn(7, 50), drawn(8, 90)
    first, between, again = (stepped(session, ids, 40) for ids in (a, b, a))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != between[:10].tobytes()


def test_a_fresh_session_gives_the_same_bits_as_a_used_one() -> None:
    ids = drawn(9, 45)
    used = stepped(shared(), ids, 40)
    assert used.tobytes() == stepped(subject().session(), ids, 40).tobytes()


def real_rows(session: ModelSession, count: int, poison: float) -> bytes:
    """Every layer's rotated q, k and v and the last residual of the first `count` rows, with `poison` in the rows after."""
    w, entry = session.plan.widths, session.plan.entry(f"prefill_{BUCKET}")
    hidden = np.full((BUCKET, w.hidden), poison, BF16)
    hidden[:count] = session.packer.embedding(np.asarray(drawn(11, count)))
    session.run_rows(entry, hidden)
    parts = [(entry.values[f"layers.{layer}.rope.out"], w.qkv) for layer in session.plan.layers]
    parts.append((entry.values["output"], w.hidden))
    return b"".join(session.read(part, (BUCKET, width))[:count].tobytes() for part, width in parts)


@pytest.mark.parametrize("count", [1, 5, 63])
def test_rows_beyond_the_prompt_do_not_reach_real_rows(count: int) -> None:
    assert real_rows(shared(), count, 0.0) == real_rows(shared(), count, 1e4)


def test_a_mask_that_lets_later_rows_leak_is_seen(tmp_path: Path) -> None:
    with planted_source(attention_prefill, ("if (key > token)", "if (key > token + 1)"), folder=tmp_path):
        session = subject().session()
        assert real_rows(session, 5, 0.0) != real_rows(session, 5, 1e4)


def test_keys_beyond_the_position_do_not_reach_decode() -> None:
    """Stale keys of a longer conversation stand in the cache; they are masked, whatever they are."""
    session, ids = shared(), drawn(12, 21)
    clean = stepped(session, ids, 20)
    size = session.plan.arenas.sizes["kv"]
    session.session.write("kv", 0, np.full(size, 1e4, BF16))
    assert stepped(session, ids, 20).tobytes() == clean.tobytes()
    session.session.write("kv", 0, np.zeros(size, BF16))


def test_host_bytes_of_a_token_are_its_row_its_parameters_and_its_cache_rows() -> None:
    session = shared()
    session.prefill(drawn(13, 10))
    session.decode(3)
    w, layers = session.plan.widths, len(session.plan.layers)
    rows = layers * 2 * w.kv_heads * w.head_dim * 2
    assert session.host_bytes_per_token == 2 * w.hidden + 64 + 2 * w.head_dim + rows
    assert session.host_bytes_per_token - rows <= 64 << 10
