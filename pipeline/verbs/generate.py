# SPDX-License-Identifier: Apache-2.0
"""generate: text from a deployment, by the same runner that phase 6 judged."""

from __future__ import annotations

import time
from pathlib import Path

from npu.device import Device
from pipeline import worker
from pipeline.conduct import pending
from pipeline.context import cache_directory
from pipeline.deployment import Deployment, find
from pipeline.intake import require_unchanged
from pipeline.runner import Runner
from pipeline.verbs.console import End, parser
from pipeline.verbs.deploy import introduce
from reference.oracle.chat import encode_chat
from reference.oracle.config import load_config
from reference.oracle.sampling import Sampler, Sampling
from reference.oracle.tokenizer import load_tokenizer
from refusal import Refusal


def generate(arguments: list[str]) -> End:
    """Command line of scripts/generate.py."""
    p = parser("generate", "Text from a deployment.")
    p.add_argument("name", nargs="?")
    p.add_argument("--prompt", required=True)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--raw", action="store_true", help="do not wrap the prompt in the model's chat template")
    p.add_argument("--temperature", type=float, default=0.0, help="0 (default) is greedy")
    p.add_argument("--top-k", type=int, default=0)
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args(arguments)
    deployment = find(args.name)
    introduce(deployment)
    require_unchanged(deployment.description)
    open_phases = pending(deployment)
    if open_phases:
        print(f"phases {open_phases} have not passed: this text proves nothing")
    cache = cache_directory()
    sampler = Sampler(Sampling(args.temperature, args.top_k, args.top_p, args.seed))
    speak(
        deployment,
        worker.open_device(deployment.description.device, cache),
        cache,
        args.prompt,
        args.tokens,
        sampler,
        args.raw,
    )
    return End(0, f"scripts/status.py {deployment.name}")


def speak(
    deployment: Deployment, device: Device, cache: Path, prompt: str, count: int, sampler: Sampler, raw: bool = False
) -> str:
    """Print the continuation of a prompt as it comes; returns the whole text.

    Raises:
        Refusal: no tokenizer, or more positions than the deployment's context has; before anything is compiled.
    """
    ids = _prompt_ids(deployment, prompt, raw)
    _require_room(len(ids), count, deployment.description.choices.context)
    print(f"prompt: {len(ids)} tokens; {sampler.sampling}", flush=True)
    runner = Runner.open(deployment, device, cache)
    tokenizer = runner.tokenizer
    stream, produced, started = tokenizer.stream(), [], time.monotonic()
    for token, _ in runner.stream(ids, count, sampler=sampler):
        produced.append(token)
        print(stream.push(token), end="", flush=True)
    print(stream.finish())
    seconds = time.monotonic() - started
    print(f"[{len(produced)} tokens; host bytes a token: {runner.session.host_bytes_per_token}; "
          f"{seconds:.1f} s of wall time of the {device.name}, which is not the NPU's time]")  # fmt: skip
    return tokenizer.decode(produced)


def _prompt_ids(deployment: Deployment, prompt: str, raw: bool) -> list[int]:
    """The prompt's token ids, in the model's chat template unless it has none or `raw` is set."""
    description = deployment.description
    tokenizer = load_tokenizer(load_config(Path(description.model_dir), description.accepted_keys))
    if raw or tokenizer.chat_template is None:
        return tokenizer.encode(prompt)
    return encode_chat(tokenizer, [{"role": "user", "content": prompt}])


def _require_room(prompt: int, count: int, context: int) -> None:
    """Raise a Refusal for a request that the KV cache has no room for."""
    if count < 1:
        raise Refusal(f"--tokens {count}", expected="at least 1", where="generate", next_step="ask for a token or more")
    if prompt + count - 1 > context:
        raise Refusal(
            f"{prompt} prompt tokens and {count} new ones", expected=f"at most {context} positions", where="context",
            next_step="shorten the prompt, ask for fewer tokens, or deploy with a larger --context",
        )  # fmt: skip
