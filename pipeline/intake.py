# SPDX-License-Identifier: Apache-2.0
"""Intake: from a model argument to the description of a deployment. Everything that can be refused is refused here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from judge.evaluation import differences
from judge.evidence import file_digest
from judge.policy import load_policy
from pipeline.deployment import Description, slug
from pipeline.files import read_as
from pipeline.manifest import pack_hash
from pipeline.model_source import resolve
from planner.graph import require_supported
from planner.plan import Choices
from reference.oracle.config import ModelConfig, load_config
from reference.oracle.tensors import open_weights
from reference.oracle.tokenizer import load_tokenizer
from reference.oracle.weights import Weights
from refusal import Refusal


def choices_for(config: ModelConfig, *, layers: int | None, context: int | None) -> Choices:
    """The default choices for a model: context within what it was trained for, buckets within the context."""
    longest = min(context or 2048, max(256, config.max_position_embeddings // 128 * 128))
    buckets = tuple(bucket for bucket in (256, 512, 1024, 2048, 4096) if bucket <= longest)
    if not buckets or longest != buckets[-1]:
        raise Refusal(
            f"--context {context}", expected="256, 512, 1024, 2048 or 4096, within the model's own context",
            where="choices", next_step="choose one of these",
        )  # fmt: skip
    if layers is not None and not 0 < layers <= config.num_hidden_layers:
        raise Refusal(f"--layers {layers}", expected=f"1 to {config.num_hidden_layers}", where="choices",
                      next_step="give --layers within that, or leave it out for all of them")  # fmt: skip
    chosen = None if layers is None or layers == config.num_hidden_layers else tuple(range(layers))
    prefill = tuple(bucket for bucket in (64, 512) if bucket <= longest)
    return replace(Choices(), context=longest, decode_buckets=buckets, prefill_buckets=prefill, layers=chosen,
                   score_bucket=prefill[-1])  # fmt: skip


def describe(
    argument: str,
    *,
    device: str,
    name: str | None = None,
    layers: int | None = None,
    context: int | None = None,
    accept_keys: Iterable[str] = (),
    download: bool = True,
    synthetic: bool = False,
) -> Description:
    """Check a model and say what would be deployed. Reads headers and config, hashes the files, changes nothing else.

    Args:
        argument: a directory or a hub id. download: fetch a hub id that the local cache lacks.
        synthetic: the weights are made up, though the directory does not say so: judged and labelled as such.

    Raises:
        Refusal: whatever is wrong with the model, or not covered by the kernels.
        pipeline.hub_download.Downloading: the model is still being fetched.
    """
    source = resolve(argument, download=download)
    directory = source.directory
    config = load_config(directory, tuple(accept_keys))
    require_supported(config)
    weights = open_weights(config)
    provenance = read_as(directory / "provenance.json", dict) or {}
    described = "synthetic" if synthetic else str(provenance.get("weights", "as found in the model directory"))
    if described != "synthetic":
        _require_tokenizer(directory)
        load_tokenizer(config)
    chosen = choices_for(config, layers=layers, context=context)
    return Description(
        name=slug(name or source.name),
        model_dir=str(directory),
        device=device,
        choices=chosen,
        inputs=hashes(directory, weights),
        synthetic=described == "synthetic",
        provenance=described,
        accepted_keys=tuple(accept_keys),
        hub_id=source.hub_id,
        revision=source.commit,
    )


def _require_tokenizer(directory: Path) -> None:
    """Refuse trained weights without a tokenizer: their gates read text. Made-up ones are judged on drawn ids.

    Raises:
        Refusal: no tokenizer.json; where another form of it is there, with the command that converts it.
    """
    if (directory / "tokenizer.json").exists():
        return
    other = next((name for name in ("tokenizer.model", "vocab.json") if (directory / name).exists()), "")
    code = (
        "from transformers import AutoTokenizer as T; "
        f"T.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
    )
    raise Refusal(
        f"no tokenizer.json{f', only {other}' if other else ''}",
        expected="the model's tokenizer: phases 0 and 3 judge text, and generate needs it", where=str(directory),
        next_step=f"convert it: python -c {shlex.quote(code)}" if other else
        "copy the model's tokenizer.json and tokenizer_config.json there; if the weights are made up, declare it: "
        f"scripts/deploy.py {shlex.quote(str(directory))} --synthetic",
    )  # fmt: skip


def require_judgeable(choices: Choices) -> None:
    """Refuse, before any work, a context too short for what phase 3 judges.

    Raises:
        Refusal: the scored rows are fewer than the longest text of the policy.
    """
    needed = max(load_policy().limits.text_positions)
    if (choices.score_bucket or 0) < needed:
        raise Refusal(
            f"context {choices.context}: {choices.score_bucket} positions can be scored at once",
            expected=f"at least {needed}, which phase 3 judges",
            where="--context",
            next_step=f"give --context {needed} or more (a model whose own context is shorter cannot be judged)",
        )


def hashes(directory: Path, weights: Weights) -> dict[str, str]:
    """SHA-256 of every file that the deployment's numbers depend on."""
    found = {f"model/{name}": value for name, value in weights.sha256().items()}
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (directory / name).exists():
            found[f"model/{name}"] = file_digest(directory / name)
    return found


def require_unchanged(description: Description) -> None:
    """Refuse a model whose files are no longer those of intake, by their names.

    Weights are hashed again only where size, times or inode are others than when they were hashed last.

    Raises:
        Refusal: a file that changed, came or went; or a directory that is gone.
    """
    directory = Path(description.model_dir)
    found = hashes(directory, open_weights(load_config(directory, description.accepted_keys)))
    changed = differences("", found, description.inputs)
    if changed:
        raise Refusal(
            f"changed since intake:{';'.join(changed)}", expected="the files that every record of the deployment names",
            where=str(directory),
            next_step=f"put the files back, or deploy these under another name: scripts/deploy.py {shlex.quote(str(directory))} --name NEW",
        )  # fmt: skip


__all__ = ["choices_for", "describe", "hashes", "pack_hash", "require_judgeable", "require_unchanged"]
