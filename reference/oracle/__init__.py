# SPDX-License-Identifier: Apache-2.0
"""The oracle: config, weights, FP32 operators, decoder, tokenizer and sampling of one model directory.

config = load_config(model_dir)
decoder = Decoder(config, open_weights(config))
logits = decoder.prefill(ids)          # [len(ids), vocab_size], FP32
logits = decoder.decode(next_id)       # [vocab_size]
"""

from reference.oracle.architecture import ARCHITECTURES, Architecture
from reference.oracle.config import ModelConfig, RopeConfig, load_config
from reference.oracle.decoder import Decoder, KVCache, TapRecorder
from reference.oracle.tensors import expected_tensors, open_weights
from reference.oracle.weights import Weights, file_sha256

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Decoder",
    "KVCache",
    "ModelConfig",
    "RopeConfig",
    "TapRecorder",
    "Weights",
    "expected_tensors",
    "file_sha256",
    "load_config",
    "open_weights",
]
