# SPDX-License-Identifier: Apache-2.0
"""The plan of a deployment: entries, dispatches, designs, arenas, packed weights.

Prefill runs every operator as a design of its own over a bucket of M tokens. Decode groups a layer into five dispatches:
norm + qkv, rotation + attention, o + residual, norm + gate/up + SiLU-multiply, down + residual; and norm + LM head.
All entries share one weights arena; prefill and decode want weights in different order and keep a copy each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernels.designs.attention_decode import PARAMS, DecodeAttentionDesign, cache_elements
from kernels.designs.attention_prefill import PrefillAttentionDesign
from kernels.designs.design import OpDesign
from kernels.designs.gemm import GemmDesign
from kernels.designs.gemv import GemvDesign, gemv_for
from kernels.designs.rowwise import AddDesign, RmsNormDesign, RopeDesign, SiluMulDesign
from planner.graph import Kind, OperatorCall, head_calls, layer_calls, require_supported
from planner.memory import Arenas, Slice
from planner.packing import PackedWeight
from planner.tiles import choose_gemm
from planner.widths import Widths
from reference.oracle.config import ModelConfig
from refusal import Refusal


@dataclass(frozen=True)
class Choices:
    """What a plan may vary. Buckets are tokens; context is the KV cache's capacity in keys."""

    prefill_buckets: tuple[int, ...] = (64, 512)
    decode_buckets: tuple[int, ...] = (256, 512, 1024, 2048)
    context: int = 2048
    prefill_mode: str = "bfp16"  # matrix mode of the prefill GEMMs
    head_mode: str = "bf16"  # matrix mode of the LM head over all rows, which only gates use
    attention_mode: str = "bf16"
    layers: tuple[int, ...] | None = None  # None: all; a subset is a partial deployment
    score_bucket: int | None = 512  # rows of the LM head over all positions; None leaves the entry out
    tiles: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # linear kind -> (m, k, n), overrides
    gemv_rows: dict[str, int] = field(default_factory=dict)  # linear kind -> rows of a decode weight element, overrides
    key_block: int = 32  # keys of a block in prefill attention


@dataclass(frozen=True)
class Dispatch:
    """One run of a design: `operands[i]` is bound to argument i. `covers` are the operators it carries out."""

    design: OpDesign
    operands: tuple[Slice, ...]
    covers: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One entry sequence. `values` names slices that the host, or a gate, writes or reads."""

    name: str
    dispatches: tuple[Dispatch, ...]
    values: dict[str, Slice]


@dataclass(frozen=True)
class Plan:
    """Everything that is fixed before a module is written."""

    config: ModelConfig
    choices: Choices
    widths: Widths
    layers: tuple[int, ...]
    entries: tuple[Entry, ...]
    arenas: Arenas
    weights: tuple[PackedWeight, ...]
    cache: tuple[Slice, ...]  # KV cache of each planned layer, in order

    def entry(self, name: str) -> Entry:
        """The entry called `name`; KeyError names those there are."""
        for candidate in self.entries:
            if candidate.name == name:
                return candidate
        raise KeyError(f"no entry {name!r}; the plan has {[e.name for e in self.entries]}")

    @property
    def designs(self) -> tuple[OpDesign, ...]:
        """Each design once, in the order of first use."""
        found: dict[str, OpDesign] = {}
        for entry in self.entries:
            for dispatch in entry.dispatches:
                found.setdefault(dispatch.design.name, dispatch.design)
        return tuple(found.values())


def make_plan(config: ModelConfig, choices: Choices, *, legal: Callable[[OpDesign], bool]) -> Plan:
    """Plan a deployment.

    Args:
        legal: whether `npu.legality` accepts a design; tilings are tried in order of predicted time.

    Raises:
        Refusal: the model or a choice is outside what the kernels cover.
    """
    require_supported(config)
    require_buckets(choices)
    return _Planner(config, choices, legal).plan()


def require_buckets(choices: Choices) -> None:
    """Refuse buckets that leave a position without an entry, or reach beyond the cache.

    Raises:
        Refusal: names the bucket and the context.
    """
    context, score = choices.context, choices.score_bucket
    if not choices.decode_buckets or max(choices.decode_buckets) != context:
        raise Refusal(
            f"decode buckets {choices.decode_buckets}", expected=f"the largest to be the context, {context}",
            where="plan choices", next_step="every position below the context needs a bucket that holds it",
        )  # fmt: skip
    if not choices.prefill_buckets or max(choices.prefill_buckets) > context:
        raise Refusal(
            f"prefill buckets {choices.prefill_buckets}", expected=f"at least one, none above the context, {context}",
            where="plan choices", next_step="rows beyond the cache's capacity would be another layer's",
        )  # fmt: skip
    if score is not None and score > max(choices.prefill_buckets):
        raise Refusal(
            f"score bucket {score}", expected=f"at most the largest prefill bucket, {max(choices.prefill_buckets)}, or None",
            where="plan choices", next_step="scored rows come from one prefill",
        )  # fmt: skip


class _Planner:
    def __init__(self, config: ModelConfig, choices: Choices, legal: Callable[[OpDesign], bool]) -> None:
        self.config, self.choices, self.legal = config, choices, legal
        self.widths = Widths.of(config)
        self.layers = choices.layers if choices.layers is not None else tuple(range(config.num_hidden_layers))
        if not self.layers or max(self.layers) >= config.num_hidden_layers:
            raise Refusal(
                f"layers {self.layers}", expected=f"some of 0..{config.num_hidden_layers - 1}", where="plan choices"
            )
        self.arenas = Arenas()
        self.weights: dict[tuple, PackedWeight] = {}
        self.gemm_tiles: dict[str, tuple[int, int]] = {}  # linear kind -> (k, n) of its packed weight

    def plan(self) -> Plan:
        w = self.widths
        self.cache = tuple(
            self.arenas.take("kv", cache_elements(self.choices.context, w.kv_heads, w.head_dim)) for _ in self.layers
        )
        # The largest bucket chooses the weight tiles, the others follow it.
        buckets = sorted(self.choices.prefill_buckets, reverse=True)
        entries = [self._prefill(bucket) for bucket in buckets]
        if self.choices.score_bucket:
            entries.append(self._score(self.choices.score_bucket))
        entries += [self._decode(bucket) for bucket in sorted(self.choices.decode_buckets)]
        return Plan(
            self.config, self.choices, w, self.layers, tuple(entries), self.arenas,
            tuple(self.weights.values()), self.cache,
        )  # fmt: skip

    # ---- weights ----

    def _weight(self, logical: str, layout: str, elements: int, design=None) -> Slice:
        """The slice of a packed weight, taken once for equal layouts."""
        key = (logical, layout, elements, _packing_key(design))
        if key not in self.weights:
            self.weights[key] = PackedWeight(logical, self.arenas.take("weights", elements), layout, design)
        return self.weights[key].slice

    def _rope_table(self) -> Slice:
        """cos | sin of every position that the largest bucket reaches; smaller buckets read its start."""
        return self._weight("rope", "rope", max(self.choices.prefill_buckets) * self.widths.head_dim)

    # ---- prefill ----

    def _prefill(self, rows: int) -> Entry:
        calls = layer_calls(self.layers)
        values = {"input": self._activation(rows, self.widths.hidden)}
        dispatches = [self._prefill_dispatch(call, rows, values) for call in calls]
        values["output"] = values[calls[-1].output]
        return Entry(f"prefill_{rows}", tuple(dispatches), values)

    def _activation(self, rows: int, width: int) -> Slice:
        return self.arenas.take("activations", rows * width)

    def _prefill_dispatch(self, call: OperatorCall, rows: int, values: dict[str, Slice]) -> Dispatch:
        design = self._prefill_design(call, rows)
        operands = self._bind(call, design, values)
        return Dispatch(design, operands, (call.name,))

    def _bind(self, call: OperatorCall, design: OpDesign, values: dict[str, Slice]) -> tuple[Slice, ...]:
        """Bind inputs in order to "in" operands, the weight to the "weight" operand, a new slice to the output."""
        inputs = iter(call.inputs)
        bound = []
        for operand in design.operands:
            elements = operand.type.elements
            if call.kind is Kind.ROPE and operand.role == "weight":
                bound.append(self._rope_table().part(0, elements))
            elif operand.role == "weight":
                layout = "vector" if call.kind is Kind.NORM else "gemm"
                bound.append(self._weight(call.weights[0], layout, elements, design if layout == "gemm" else None))
            elif operand.role == "in":
                bound.append(values[next(inputs)].part(0, elements))
            else:
                arena = "output" if operand.type.dtype == "f32" else "activations"
                values[call.output] = self.arenas.take(arena, elements)
                bound.append(values[call.output])
        return tuple(bound)

    def _prefill_design(self, call: OperatorCall, rows: int) -> OpDesign:
        w = self.widths
        if call.kind is Kind.NORM:
            return RmsNormDesign(rows, w.hidden, w.hidden_valid, self.config.rms_norm_eps)
        if call.kind is Kind.ROPE:
            return RopeDesign(rows, w.heads + w.kv_heads, w.kv_heads + w.pad_heads, w.head_dim)
        if call.kind is Kind.ATTENTION:
            return PrefillAttentionDesign(
                rows, w.heads, w.kv_heads, w.head_dim, w.pad_heads, self.choices.key_block, self.choices.attention_mode
            )
        if call.kind is Kind.SILU_MUL:
            return SiluMulDesign(rows, w.intermediate)
        if call.kind is Kind.ADD:
            return AddDesign(rows, w.hidden)
        return self._gemm(call, rows)

    def _gemm(self, call: OperatorCall, rows: int) -> GemmDesign:
        w = self.widths
        kind = call.weights[0].rsplit(".", 1)[-1]
        cols_in, cols_out = {
            "qkv": (w.hidden, w.qkv),
            "o_proj": (w.attention, w.hidden),
            "gate_up": (w.hidden, 2 * w.intermediate),
            "down": (w.intermediate, w.hidden),
            "lm_head": (w.hidden, w.vocab),
        }[kind]
        head = call.kind is Kind.LM_HEAD
        mode, out = (self.choices.head_mode, "f32") if head else (self.choices.prefill_mode, "bf16")
        if kind in self.choices.tiles:
            m, k, n = self.choices.tiles[kind]
            return GemmDesign(rows, cols_in, cols_out, min(m, rows // 4), k, n, mode, out)
        design = choose_gemm(
            rows, cols_in, cols_out, mode=mode, out=out, exact=not head,
            weight_tile=self.gemm_tiles.get(kind), legal=self.legal,
        )  # fmt: skip
        self.gemm_tiles[kind] = (design.k, design.n)
        return design

    def _score(self, rows: int) -> Entry:
        values = {"input": self._activation(rows, self.widths.hidden)}
        dispatches = [self._prefill_dispatch(call, rows, values) for call in head_calls("input")]
        return Entry(f"score_{rows}", tuple(dispatches), values)

    # ---- decode ----

    def _decode(self, bucket: int) -> Entry:
        w = self.widths
        take = self.arenas.take
        values = {
            "input": take("activations", w.hidden),
            "params": take("params", PARAMS + w.head_dim),
            # One row of attention output, rotated k and v per layer, together: the host appends k and v from here.
            "attention_rows": take("activations", len(self.layers) * (w.heads + 2 * w.kv_heads) * w.head_dim),
        }
        dispatches: list[Dispatch] = []
        source = values["input"]
        for place, index in enumerate(self.layers):
            more, source = self._decode_layer(place, index, bucket, source, values)
            dispatches += more
        values["output"] = source
        dispatches.append(self._decode_head(source, values))
        return Entry(f"decode_{bucket}", tuple(dispatches), values)

    def _decode_layer(
        self, place: int, index: int, bucket: int, source: Slice, values: dict[str, Slice]
    ) -> tuple[list[Dispatch], Slice]:
        w, p = self.widths, f"layers.{index}"
        row = (w.heads + 2 * w.kv_heads) * w.head_dim
        attention = DecodeAttentionDesign(bucket, self.choices.context, w.heads, w.kv_heads, w.head_dim)
        qkv, first = self._gemv(p, "qkv", "norm", source, "attn_norm")
        out = values["attention_rows"].part(place * row, row)
        bound = (values["params"], qkv.part(0, row), self.cache[place], out)
        middle = Dispatch(attention, bound, (f"{p}.rope", f"{p}.attn"))
        residual1, second = self._gemv(p, "o_proj", "add", out.part(0, w.attention), None, source)
        act, third = self._gemv(p, "gate_up", "swiglu", residual1, "mlp_norm")
        residual2, fourth = self._gemv(p, "down", "add", act, None, residual1)
        values |= {
            f"{p}.qkv.out": qkv, f"{p}.attn.out": out, f"{p}.residual1": residual1, f"{p}.act": act,
            f"{p}.residual2": residual2,
        }  # fmt: skip
        return [first, middle, second, third, fourth], residual2

    def _gemv(
        self, prefix: str, kind: str, fused: str, x: Slice, norm: str | None, residual: Slice | None = None
    ) -> tuple[Slice, Dispatch]:
        w = self.widths
        outputs = {"qkv": w.qkv, "o_proj": w.hidden, "gate_up": w.intermediate, "down": w.hidden}[kind]
        design = self._gemv_design(kind, outputs, x.elements, fused)
        weight = self._weight(f"{prefix}.{kind}", "gemv", design.matrices * design.N * design.K, design)
        extra = ()
        if norm:
            extra = (self._weight(f"{prefix}.{norm}", "vector", w.hidden),)
        elif residual:
            extra = (residual,)
        y = self.arenas.take("activations", outputs)
        covers = {
            "qkv": ("attn_norm", "qkv"), "o_proj": ("o_proj", "residual1"),
            "gate_up": ("mlp_norm", "gate_up", "act"), "down": ("down", "residual2"),
        }[kind]  # fmt: skip
        return y, Dispatch(design, (weight, x, *extra, y), tuple(f"{prefix}.{name}" for name in covers))

    def _gemv_design(self, linear: str, outputs: int, inputs: int, kind: str, out: str = "bf16") -> GemvDesign:
        normed = kind in ("norm", "swiglu")
        valid = self.widths.hidden_valid if normed else inputs
        epsilon = self.config.rms_norm_eps if normed else 0.0
        design = gemv_for(outputs, inputs, kind, out, valid, epsilon, self.choices.gemv_rows.get(linear, 0))
        if design is None:
            raise Refusal(
                f"GEMV of {inputs} inputs", expected="two rows of weights, or of equal parts of them, within a 16 KiB bank",
                where=f"GEMV {kind}", next_step="give fewer rows an element: choices.gemv_rows",
            )  # fmt: skip
        return design

    def _decode_head(self, source: Slice, values: dict[str, Slice]) -> Dispatch:
        w = self.widths
        design = self._gemv_design("lm_head", w.vocab, w.hidden, "norm", out="f32")
        weight = self._weight("lm_head", "gemv", design.N * design.K, design)
        gamma = self._weight("final_norm", "vector", w.hidden)
        values["logits"] = self.arenas.take("output", w.vocab)
        return Dispatch(design, (weight, source, gamma, values["logits"]), ("final_norm", "lm_head"))


def _packing_key(design: OpDesign | None) -> Sequence:
    """What of a design decides the order of its packed weight: buckets that agree in it share one copy."""
    if isinstance(design, GemmDesign):
        return (design.K, design.N, design.k, design.n)
    if isinstance(design, GemvDesign):
        return (design.K, design.N, design.rows, design.matrices, design.parts)
    return ()
