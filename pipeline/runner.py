# SPDX-License-Identifier: Apache-2.0
"""The one runner: prompt in, tokens out, prefill and decode on the device, sampling on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from npu.device import Device
from pipeline.deployment import Deployment
from pipeline.model_session import ModelSession
from reference.oracle.config import load_config
from reference.oracle.sampling import Sampler
from reference.oracle.tensors import open_weights
from reference.oracle.tokenizer import Tokenizer, load_tokenizer
from refusal import Refusal


class Runner:
    """A deployed model that answers prompts.

    Args:
        session: the model on its device. tokenizer: of the same model directory; None for models without one.
    """

    def __init__(self, session: ModelSession, tokenizer: Tokenizer | None) -> None:
        self.session, self.tokenizer = session, tokenizer

    @staticmethod
    def open(
        deployment: Deployment, device: Device, cache: Path, progress: Callable[[str], None] = lambda line: None
    ) -> Runner:
        """Load a deployment's model with the choices it has accepted."""
        description = deployment.description
        directory = Path(description.model_dir)
        config = load_config(directory, description.accepted_keys)
        tokenizer = load_tokenizer(config) if (directory / "tokenizer.json").exists() else None
        session = ModelSession(
            config, open_weights(config), device, deployment.choices(), cache=cache, progress=progress
        )
        return Runner(session, tokenizer)

    @property
    def context(self) -> int:
        """Positions that the KV cache has room for."""
        return self.session.plan.choices.context

    def stream(
        self, prompt: Sequence[int], count: int, *, sampler: Sampler | None = None, stop: bool = True
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield up to `count` tokens, each with the FP32 logits [vocab] it was drawn from.

        Args:
            sampler: greedy without one. stop: heed the tokenizer, as a reader wants it: end at an end-of-text token (which is
                yielded), and draw no id that the tokenizer lacks. Gates compare the model's own choices and do neither.

        Raises:
            Refusal: an empty prompt, an id outside the vocabulary, or more positions than the context has.
        """
        self._check(prompt, count)
        draw = sampler or Sampler()
        heeded = self.tokenizer if stop else None
        ends = heeded.eos_ids if heeded else frozenset()
        self.session.prefill(list(prompt[:-1]))
        token = prompt[-1]
        for _ in range(count):
            logits = self.session.decode(token)
            token = draw(heeded.mask_padding(logits) if heeded else logits)
            yield token, logits
            if token in ends:
                return

    def _check(self, prompt: Sequence[int], count: int) -> None:
        vocab = self.session.config.vocab_size
        if not prompt:
            raise Refusal("an empty prompt", expected="at least one token", where="prompt", next_step="give some text")
        outside = [token for token in prompt if not 0 <= token < vocab]
        if outside:
            raise Refusal(f"token id {outside[0]}", expected=f"0..{vocab - 1}", where="prompt")
        if len(prompt) + count - 1 > self.context:
            raise Refusal(
                f"{len(prompt)} prompt tokens and {count} new ones", expected=f"at most {self.context} positions",
                where="context", next_step="shorten the prompt, ask for fewer tokens, or deploy with a larger --context",
            )  # fmt: skip
