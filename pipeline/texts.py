# SPDX-License-Identifier: Apache-2.0
"""Token ids that the gates run on: shipped public-domain texts and fixed prompts; drawn ids for made-up weights.

A model without a tokenizer also gets drawn ids. Made-up weights do in any case: their thresholds were measured on drawn ids
(`measured_on` in judge/policy.toml), and text repeats few tokens, so that the means of a first layer do not settle as theirs did.
"""

from __future__ import annotations

import hashlib

import numpy as np

from judge.evaluation import EvaluationLimits
from judge.prompts import load_prompts
from pipeline.context import Subject
from reference.oracle.tokenizer import Tokenizer, load_tokenizer
from reference.texts import texts
from refusal import Refusal

DRAWN_PROMPT = 24  # tokens of a drawn prompt


def text_ids(subject: Subject, index: int, count: int) -> list[int]:
    """The first `count` token ids of shipped text `index`; drawn uniformly (seed 1000 + index) where text is not used.

    Raises:
        Refusal: the text is shorter than that for this tokenizer.
    """
    if subject.nonce:
        return _fresh(subject, f"text {index}", count)
    tokenizer = _reader_of(subject)
    if tokenizer is None:
        return _drawn(subject, 1000 + index, count)
    text = texts()[index]
    ids = tokenizer.encode(text.content)
    if len(ids) < count:
        raise Refusal(f"{len(ids)} tokens", expected=f"at least {count}", where=f"reference/texts/{text.name}")
    return ids[:count]


def prompt_ids(subject: Subject, index: int) -> list[int]:
    """Token ids of greedy prompt `index`, as plain text."""
    if subject.nonce:
        least, most = EvaluationLimits().prompt_tokens
        length = least + seed_of(subject.nonce, f"length {index}") % (most - least + 1)
        return _fresh(subject, f"prompt {index}", length)
    tokenizer = _reader_of(subject)
    if tokenizer is None:
        return _drawn(subject, 2000 + index, DRAWN_PROMPT + 7 * index)
    return tokenizer.encode(load_prompts().greedy[index].text)


def tokenizer_of(subject: Subject) -> Tokenizer | None:
    """The subject's tokenizer, None where its directory has none."""
    directory = subject.config.model_dir
    return load_tokenizer(subject.config) if (directory / "tokenizer.json").exists() else None


def _reader_of(subject: Subject) -> Tokenizer | None:
    """The tokenizer by which the subject's gates read text, None where their ids are drawn."""
    return None if subject.synthetic else tokenizer_of(subject)


def _drawn(subject: Subject, seed: int, count: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(0, subject.config.vocab_size, count)]


def seed_of(nonce: str, what: str) -> int:
    """A seed that nobody knew before the nonce was drawn; another one for each purpose."""
    return int.from_bytes(hashlib.sha256(f"{nonce} {what}".encode()).digest()[:8], "little")


def _fresh(subject: Subject, what: str, count: int) -> list[int]:
    """A window of `count` tokens somewhere in the shipped texts, by the evaluation's nonce; or drawn ids."""
    seed = seed_of(subject.nonce, f"{subject.name} {what}")
    tokenizer = _reader_of(subject)
    if tokenizer is None:
        return _drawn(subject, seed, count)
    rng = np.random.default_rng(seed)
    windows = [ids for text in texts() if len(ids := tokenizer.encode(text.content)) > count]
    ids = windows[int(rng.integers(len(windows)))]
    start = int(rng.integers(len(ids) - count))
    return ids[start : start + count]
