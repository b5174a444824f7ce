# SPDX-License-Identifier: Apache-2.0
"""How fast the oracle is against transformers: same run, same threads, rounds in turn. Not a test.

    python -m tests.reference.bench_against_transformers [model_dir]

Without a directory it makes one of SmolLM2-135M's shape with made-up weights, in a temporary folder. Prints
the fastest and the median of the rounds; on a busy machine neither means much, so the load is printed too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reference.oracle import Decoder, load_config, open_weights
from tests.reference.transformers_oracle import torch, transformers
from tests.stand_ins.models import write_stand_in

PROMPT, STEPS, ROUNDS = 256, 16, 7
SMOLLM2_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def measure(model_dir: Path) -> None:
    """Print seconds a prefill and a decode step, ours and theirs."""
    config = load_config(model_dir)
    decoder = Decoder(config, open_weights(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(0, config.vocab_size, PROMPT)
    tensor = torch.tensor(ids)[None]

    def their_prefill() -> None:
        model(tensor, use_cache=True)

    def our_decode() -> None:
        for token in ids[:STEPS]:
            decoder.decode(int(token))

    cache = model(tensor, use_cache=True).past_key_values

    def their_decode() -> None:
        for index in range(STEPS):
            model(tensor[:, index : index + 1], past_key_values=cache, use_cache=True)

    print(f"torch threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    compare("prefill", lambda: decoder.prefill(ids), their_prefill, 1)
    compare("decode step", our_decode, their_decode, STEPS)


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object], steps: int) -> None:
    times: dict[str, list[float]] = {"oracle": [], "transformers": []}
    for round_ in range(ROUNDS + 1):
        for side, run in (("oracle", ours), ("transformers", theirs)):
            start = time.perf_counter()
            run()
            if round_:  # the first round warms up
                times[side].append((time.perf_counter() - start) / steps)
    best = {side: min(values) for side, values in times.items()}
    middle = {side: sorted(values)[ROUNDS // 2] for side, values in times.items()}
    for side in times:
        print(f"{name:12} {side:13} fastest {best[side] * 1e3:7.1f} ms  median {middle[side] * 1e3:7.1f} ms")
    print(
        f"{name:12} ratio         fastest {best['oracle'] / best['transformers']:7.2f}     "
        f"median {middle['oracle'] / middle['transformers']:7.2f}"
    )


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        measure(Path(sys.argv[1]) if len(sys.argv) > 1 else write_stand_in(folder, tokenizer=False, **SMOLLM2_135M))
