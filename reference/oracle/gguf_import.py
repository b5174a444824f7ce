# SPDX-License-Identifier: Apache-2.0
"""A Llama GGUF file as a normal Hugging Face model directory.

GGUF keeps config and tokenizer in its own fields, and the converter of llama.cpp permutes the rows
of q and k so that its rotation pairs neighbours. Both are undone here. Only what the demo model
needs is read: architecture "llama", byte-level BPE with the pre-tokenizer "smollm". Anything else is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from refusal import Refusal

_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # llama_token_type: a special token


class LlamaGGUF:
    """The fields and tensors of one file.

    Raises:
        Refusal: not a GGUF file, or a model or tokenizer other than described above.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError) as error:
            raise Refusal(f"not a readable GGUF file: {error}", where=str(path)) from None
        self._expect("general.architecture", "llama")
        self._expect("tokenizer.ggml.model", "gpt2")
        self._expect("tokenizer.ggml.pre", "smollm")

    def field(self, name: str) -> Any:
        """The value of a metadata field."""
        found = self._reader.get_field(name)
        if found is None:
            raise Refusal(f"no field {name}", where=str(self.path))
        return found.contents()

    def _expect(self, name: str, value: str) -> None:
        if (found := self.field(name)) != value:
            raise Refusal(f"{name} = {found!r}", expected=repr(value), where=str(self.path))

    def config(self) -> dict[str, Any]:
        """config.json: every value from the file."""
        names = {tensor.name for tensor in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "head_dim": self.field("llama.rope.dimension_count"),
            "hidden_act": "silu",
            "hidden_size": self.field("llama.embedding_length"),
            "intermediate_size": self.field("llama.feed_forward_length"),
            "max_position_embeddings": self.field("llama.context_length"),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.field("llama.attention.head_count"),
            "num_hidden_layers": self.field("llama.block_count"),
            "num_key_value_heads": self.field("llama.attention.head_count_kv"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
            "rms_norm_eps": _shortest(self.field("llama.attention.layer_norm_rms_epsilon")),
            "rope_scaling": None,
            "rope_theta": _shortest(self.field("llama.rope.freq_base")),
            "tie_word_embeddings": "output.weight" not in names,
            "torch_dtype": "bfloat16",
            "vocab_size": self.field("llama.vocab_size"),
        }

    def tensors(self) -> dict[str, np.ndarray]:
        """Every tensor under its Hugging Face name, dequantised and rounded to bf16 (to nearest, ties to even)."""
        heads = {
            "attn_q": self.field("llama.attention.head_count"),
            "attn_k": self.field("llama.attention.head_count_kv"),
        }
        result = {}
        for tensor in self._reader.tensors:
            name, part = self._hugging_face_name(tensor.name)
            values = _values(tensor)
            if part in heads:
                values = undo_rotary_permutation(values, heads[part])
            result[name] = values.astype(ml_dtypes.bfloat16)
        return result

    def _hugging_face_name(self, name: str) -> tuple[str, str]:
        """Hugging Face name, and the part of the layer it is."""
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and stem in _TOP_LEVEL:
            return f"{_TOP_LEVEL[stem]}.weight", stem
        block, _, rest = stem.partition(".")
        index, _, part = rest.partition(".")
        if kind != "weight" or block != "blk" or part not in _IN_LAYER:
            raise Refusal(f"tensor {name}", expected="a weight of a plain Llama", where=str(self.path))
        return f"model.layers.{index}.{_IN_LAYER[part]}.weight", part

    def tokenizer(self) -> Tokenizer:
        """The byte-level BPE that the fields describe.

        Pre-tokenizer "smollm": each digit stands alone, then the split of GPT-2.
        """
        tokens = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        backend.decoder = decoders.ByteLevel()
        kinds = self.field("tokenizer.ggml.token_type")
        special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        return backend

    def tokenizer_settings(self) -> dict[str, Any]:
        """tokenizer_config.json."""
        tokens = self.field("tokenizer.ggml.tokens")
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        settings = {key: tokens[self.field(f"tokenizer.ggml.{name}_token_id")] for key, name in names.items()}
        return settings | {
            "add_prefix_space": self.field("tokenizer.ggml.add_space_prefix"),
            "chat_template": self.field("tokenizer.chat_template"),
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.field("llama.context_length"),
            "tokenizer_class": "GPT2Tokenizer",
        }

    def generation_settings(self) -> dict[str, Any]:
        """generation_config.json: ids only."""
        names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        return {key: self.field(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}


def write_model_dir(source: LlamaGGUF, target: Path) -> None:
    """Write config, tokenizer and bf16 safetensors into an existing directory."""
    _write_json(target / "config.json", source.config())
    _write_json(target / "generation_config.json", source.generation_settings())
    _write_json(target / "tokenizer_config.json", source.tokenizer_settings())
    source.tokenizer().save(str(target / "tokenizer.json"))
    save_file(source.tensors(), target / "model.safetensors", metadata={"format": "pt"})


def undo_rotary_permutation(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from pairs of neighbours (2i, 2i+1) back to pairs of halves (i, i + d/2).

    llama.cpp's convert_hf_to_gguf.py permutes each head's rows from [2, d/2] to [d/2, 2]; this is the inverse.
    rows: [heads * d, in].
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _values(tensor: ReaderTensor) -> np.ndarray:
    """FP32 values in [out, in] order; GGUF lists its dimensions fastest first."""
    values = dequantize(tensor.data, tensor.tensor_type)
    return values.reshape([int(n) for n in reversed(tensor.shape)])


def _shortest(value: float) -> float:
    """The shortest decimal that is the same FP32 number: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
