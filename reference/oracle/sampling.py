# SPDX-License-Identifier: Apache-2.0
"""The next token from raw logits: greedy, or drawn with temperature, top-k and top-p from a seed.

generation_config.json is reported and never applied: a repetition penalty that holds on one side
of a comparison only looks like a wrong logit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.oracle import ops
from reference.oracle.decoder import Decoder
from reference.oracle.tokenizer import Tokenizer
from refusal import Refusal


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn. temperature 0 is greedy; top_k 0 and top_p 1 cut nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        # Comparisons with NaN are false: each condition says what must hold.
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1 and self.top_k >= 0 and self.seed >= 0):
            expected = "temperature >= 0 and finite, top_k >= 0, 0 < top_p <= 1, seed >= 0"
            raise Refusal(f"{self}", expected=expected, where="sampling")


class Sampler:
    """Draws tokens one after another; the same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.sampling = sampling or Sampling()
        self._random = np.random.default_rng(self.sampling.seed)

    def __call__(self, logits: np.ndarray) -> int:
        """An id from logits [vocab]; NaN is refused, for argmax would return it in silence."""
        if np.isnan(logits).any():
            raise Refusal("logits hold NaN", expected="finite numbers or -inf", where="sampling")
        if self.sampling.temperature == 0:
            return int(np.argmax(logits))
        shares = token_probabilities(logits, self.sampling)
        return int(self._random.choice(len(shares), p=shares))


def token_probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Probabilities [vocab] in FP64 after temperature, then top-k, then top-p (the order of transformers).

    top-p keeps the smallest set of most probable tokens whose sum reaches top_p (Holtzman et al. 2020,
    arXiv 1904.09751).
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < scaled.size:
        smallest_kept = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        scaled[scaled < smallest_kept] = -np.inf
    shares = ops.softmax(scaled)
    if sampling.top_p < 1:
        order = np.argsort(-shares, kind="stable")
        before = np.cumsum(shares[order]) - shares[order]
        shares[order[before >= sampling.top_p]] = 0
        shares /= shares.sum()
    return shares


def generate(
    decoder: Decoder, tokenizer: Tokenizer, prompt: list[int], max_new_tokens: int, sampling: Sampling | None = None
) -> Iterator[int]:
    """Token ids after the prompt, up to and without the first EOS or `max_new_tokens` of them."""
    sampler = Sampler(sampling)
    logits = decoder.prefill(prompt, last_only=True)[0]
    for step in range(max_new_tokens):
        token = sampler(tokenizer.mask_padding(logits))
        if token in tokenizer.eos_ids:
            return
        yield token
        if step + 1 < max_new_tokens:
            logits = decoder.decode(token)


def ignored_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """What generation_config.json asks for beyond ids: reported beside a result, not applied."""
    names = {"_from_model_config", "transformers_version"}
    settings = tokenizer.generation_settings.items()
    return {key: value for key, value in settings if key not in names and not key.endswith("_token_id")}
