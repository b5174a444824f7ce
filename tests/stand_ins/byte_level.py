# SPDX-License-Identifier: Apache-2.0
"""The small byte-level tokenizer of synthetic models, for stand-ins too."""

from pipeline.synthetic_tokenizer import SPECIALS, write_byte_level_tokenizer

__all__ = ["SPECIALS", "write_byte_level_tokenizer"]
