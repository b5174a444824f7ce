# SPDX-License-Identifier: Apache-2.0
"""The other side of the comparison: transformers in FP32, eager attention, loaded from the same directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the test group is not installed: torch is missing")
transformers = pytest.importorskip("transformers", reason="the test group is not installed: transformers is missing")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def hugging_face_model(model_dir: Path):
    """The model as transformers reads it, in FP32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def hugging_face_logits(model_dir: Path, ids: np.ndarray) -> np.ndarray:
    """FP32 logits [n, vocab]."""
    with torch.no_grad():
        return hugging_face_model(model_dir)(torch.tensor(np.asarray(ids))[None]).logits[0].numpy()


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """sum|y - r| / sum|r|."""
    return float(np.abs(found - expected).sum() / np.abs(expected).sum())


def absolute_error(found: np.ndarray, expected: np.ndarray) -> float:
    """max|y - r| / rms(r)."""
    return float(np.abs(found - expected).max() / np.sqrt(np.mean(np.square(expected))))


def pearson(found: np.ndarray, expected: np.ndarray) -> float:
    """Correlation of the centred values."""
    return float(np.corrcoef(found.ravel().astype(np.float64), expected.ravel().astype(np.float64))[0, 1])
