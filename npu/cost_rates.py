# SPDX-License-Identifier: Apache-2.0
"""The rates of the cost model, each with where it was published and when. Nothing here was measured by this project.

Sources are third parties on different npu2 chips and firmware; where they disagree, `source` says so. A rate without a
source or a date cannot be made, and `npu.cost` makes no term without a rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from refusal import Refusal


@dataclass(frozen=True)
class Rate:
    """A published number. `unit` is of `value`; seconds = amount / value for rates, amount * value for costs."""

    name: str
    value: float
    unit: str
    source: str
    date: str

    def __post_init__(self) -> None:
        where = f"rate {self.name!r}"
        if not self.source.strip() or not self.date.strip():
            raise Refusal(
                f"source {self.source!r}, date {self.date!r}", expected="where the number is from, and when", where=where,
                next_step="name the publication, or that it is an assumption, in npu/cost_rates.py",
            )  # fmt: skip
        if not (math.isfinite(self.value) and self.value > 0):
            raise Refusal(f"value {self.value}", expected="a finite number above zero", where=where)

    def __str__(self) -> str:
        return f"{self.value:.4g} {self.unit} ({self.source}, {self.date})"


CLOCK = Rate("clock", 1.8e9, "cycles/s", "npu4 driver DPM table, last row (turbo)", "2025")

# ---- compute ----
VECTOR_ISSUE = Rate("vector issue", 1.0, "operations/cycle", "one vector slot a bundle: AIE2P instruction set (llvm-aie); "
                    "gives 85 MAC/cycle for emulated bf16, as mlir-air's best 9.8 TFLOPS", "2026-06")  # fmt: skip
LOAD_ISSUE = Rate("vector loads", 2.0, "512-bit loads/cycle", "two load units, different banks: tnzr.org", "2026-01")
STORE_ISSUE = Rate("vector stores", 1.0, "512-bit stores/cycle", "one store unit: tnzr.org", "2026-01")
CALL_CYCLES = Rate(
    "kernel call", 60.0, "cycles/call", "assumption of this project: lock pair, call, loop set-up", "2026-09"
)

# ---- streams ----
CHANNEL = Rate("stream channel", 8.9e9, "B/s", "one shim MM2S channel: 35.7 GB/s over 4 columns, mlir-air fused decode "
               "(another of its reports: 10.16)", "2026-08")  # fmt: skip
COLUMN = Rate(
    "column", 14.35e9, "B/s", "both MM2S channels of a column: FastFlowLM, quoted in mlir-air PR 1786", "2026-08-12"
)
DDR = Rate(
    "DDR",
    57e9,
    "B/s",
    "GEMM-path aggregate, xdna-engine; mlir-air add 57.7 (best 63); pure reads elsewhere 47",
    "2026-06",
)
COLD_CYCLES = Rate("cold shim transfer", 1330.0, "cycles", "first MM2S task on a shim, npu1: xdna-emu", "2026")

# ---- launching ----
DEPLOYED_DISPATCH = Rate(
    "dispatch", 52e-6, "s", "xrt-smi latency on Strix Halo, IRON issue 55; empty kernels 45-60 us", "2025-12"
)
STANDALONE_DISPATCH = Rate(
    "stand-alone launch", 80e-6, "s", "launch floor of mlir-air's kernel harness (80-116 us)", "2026-06"
)
WRITE_CYCLES = Rate("instruction", 100.0, "cycles", "write32 of the instruction stream, npu1: xdna-emu", "2026")
WORD_CYCLES = Rate("instruction word", 13.0, "cycles/word", "each word of a block write, npu1: xdna-emu", "2026")
SWITCH_FLOOR = Rate(
    "design switch", 38.5e-6, "s", "load_pdi inside one ELF: IRON decode_costs_npu2.json, 38.3-39.3 us", "2026-09-26"
)
CONFIGURATION = Rate(
    "configuration", 2.8e9, "B/s",
    "from whole-array reconfiguration in 116 us (iree-amd-aie issue 1187) less the floor, for 32 tiles of 1684 words; "
    "mlir-air's deployed launches fit it, a full PDI reset of 280-350 us (mlir-air attention) does not",
    "2026-08",
)  # fmt: skip
CORE_CODE_BYTES = Rate(
    "core program", 6736.0, "B/core", "1684 words a tile, mlir-aie pull request on load_pdi", "2026-08"
)

# ---- host ----
HOST_COPY = Rate("host copy", 20e9, "B/s", "memcpy into buffers, mlir-air LLM examples", "2026-05")

RATES: tuple[Rate, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Rate))
