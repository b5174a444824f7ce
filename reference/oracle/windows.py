# SPDX-License-Identifier: Apache-2.0
"""Which layers a config's sliding window is in force for.

A declared window need not hold: two keys gate it, and documentation and code
disagree on their sense. The rule here is that of the config classes of
transformers 5.24 (`configuration_qwen2.py`, `configuration_mistral.py`). The
decoder has full attention only, so a window in force is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from reference.oracle.architecture import Architecture, WindowRule
from reference.oracle.keys import KeyReader

# Class defaults for absent keys, equal in the config classes of all rows that have a window.
ABSENT_SLIDING_WINDOW = 4096
ABSENT_MAX_WINDOW_LAYERS = 28


def layer_windows(keys: KeyReader, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    """The window in tokens that each layer declares, None for full attention. Consumes the window keys."""
    if architecture.window is WindowRule.NONE:
        keys.only("sliding_window", None)
        keys.only("use_sliding_window", False)
        declared = [None] * layers
    elif architecture.window is WindowRule.ALL_LAYERS:
        keys.only("use_sliding_window", True)
        declared = [_window(keys)] * layers
    else:
        declared = _declared_from_layer(keys, layers)
    return _by_layer_types(keys, architecture, declared)


def _declared_from_layer(keys: KeyReader, layers: int) -> list[int | None]:
    """Layers from max_window_layers on, and only with use_sliding_window."""
    first = keys.take("max_window_layers")
    first = ABSENT_MAX_WINDOW_LAYERS if first is None else first
    if not isinstance(first, int):
        raise keys.refuse("max_window_layers", expected="an integer or null")
    if not keys.boolean("use_sliding_window", absent=False):
        keys.drop("sliding_window")
        return [None] * layers
    window = _window(keys)
    return [window if index >= first else None for index in range(layers)]


def _window(keys: KeyReader) -> int | None:
    """`sliding_window`: null is no window, an absent key is the class default."""
    if keys.is_null("sliding_window"):
        keys.drop("sliding_window")
        return None
    return keys.count("sliding_window", absent=ABSENT_SLIDING_WINDOW)


def _by_layer_types(keys: KeyReader, architecture: Architecture, declared: list[int | None]) -> tuple[int | None, ...]:
    """`layer_types` decides where the family reads it; what it asks for must be declared by the other keys."""
    types = keys.take("layer_types")
    if types is None:
        return tuple(declared)
    if not isinstance(types, list) or len(types) != len(declared):
        raise keys.refuse("layer_types", expected=f"a list of {len(declared)} names, one a layer")
    for index, name in enumerate(types):
        if name not in ("full_attention", "sliding_attention"):
            raise keys.refuse("layer_types", expected=f"full_attention; layer {index} is {name!r}")
    window = next((w for w in declared if w is not None), keys.peek("sliding_window"))
    if "sliding_attention" in types and window is None:
        raise keys.refuse("layer_types", expected="a sliding_window for the layers that are sliding_attention")
    listed = tuple(window if name == "sliding_attention" else None for name in types)
    if architecture.window is not WindowRule.FROM_LAYER and listed != tuple(declared):
        raise keys.refuse("layer_types", expected=f"what sliding_window says for {architecture.model_type}")
    return listed


def read_windows(keys: KeyReader, architecture: Architecture, layers: int, max_positions: int) -> Iterator[str]:
    """Refuse a window in force; yield a note for one that never is.

    A window of at least `max_positions` tokens covers every context the model may have.
    """
    windows = layer_windows(keys, architecture, layers)
    forced = [index for index, window in enumerate(windows) if window is not None and window < max_positions]
    if forced:
        window = windows[forced[0]]
        raise keys.refuse(
            "sliding_window",
            expected=f"no sliding window in force; it holds for layers {_ranges(forced)} "
            f"with {window} of {max_positions} positions",
            next_step=f"choose a model with full attention, or set max_position_embeddings to at most {window} "
            "in a copy of config.json and keep contexts below that",
        )
    if any(windows):
        yield f"sliding_window covers all {max_positions} positions, so attention is full"


def _ranges(indices: list[int]) -> str:
    """0, 1, 2, 5 -> '0-2, 5'."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
