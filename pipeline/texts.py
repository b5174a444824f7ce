# SPDX-License-Identifier: Apache-2.0
"""Token ids that the gates run on: shipped public-domain texts and fixed prompts; drawn ids for a model without tokenizer."""

from __future__ import annotations

import numpy as np

from judge.prompts import load_prompts
from pipeline.context import Subject
from reference.oracle.tokenizer import Tokenizer, load_tokenizer
from reference.texts import texts
from refusal import Refusal

DRAWN_PROMPT = 24  # tokens of a drawn prompt


def text_ids(subject: Subject, index: int, count: int) -> list[int]:
    """The first `count` token ids of shipped text `index`; drawn uniformly (seed 1000 + index) without a tokenizer.

    Raises:
        Refusal: the text is shorter than that for this tokenizer.
    """
    tokenizer = tokenizer_of(subject)
    if tokenizer is None:
        return _drawn(subject, 1000 + index, count)
    text = texts()[index]
    ids = tokenizer.encode(text.content)
    if len(ids) < count:
        raise Refusal(f"{len(ids)} tokens", expected=f"at least {count}", where=f"reference/texts/{text.name}")
    return ids[:count]


def prompt_ids(subject: Subject, index: int) -> list[int]:
    """Token ids of greedy prompt `index`, as plain text."""
    tokenizer = tokenizer_of(subject)
    if tokenizer is None:
        return _drawn(subject, 2000 + index, DRAWN_PROMPT + 7 * index)
    return tokenizer.encode(load_prompts().greedy[index].text)


def tokenizer_of(subject: Subject) -> Tokenizer | None:
    """The subject's tokenizer, None where its directory has none."""
    directory = subject.config.model_dir
    return load_tokenizer(subject.config) if (directory / "tokenizer.json").exists() else None


def _drawn(subject: Subject, seed: int, count: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(0, subject.config.vocab_size, count)]
