# SPDX-License-Identifier: Apache-2.0
"""What one dispatch of a design does, counted by running it once on the twin alone, and kept beside other artifacts.

Only decode attention's work depends on its data: it is counted at the last position of its bucket, the most it can be.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np

from kernels.designs.attention_decode import DecodeAttentionDesign
from kernels.designs.design import NUMPY_DTYPE, OpDesign, single_design_artifact
from npu.cost import Flow, flow_of
from npu.device import Device
from npu.mlir.load import load_program, reader_version
from npu.twin.device import TwinSession
from npu.twin.schedule_store import engine_version
from pipeline.exercise import case_of
from pipeline.files import write_whole
from refusal import Refusal

SEED = 1


def flow_of_design(design: OpDesign, device: Device, cache: Path) -> Flow:
    """The Flow of one dispatch, from the cache or from one run on the twin.

    Raises:
        Refusal: the device is not the twin: nothing else counts.
    """
    artifact = single_design_artifact(design)
    key = hashlib.sha256(f"{engine_version()} {reader_version()} {artifact.key}".encode()).hexdigest()
    kept = cache / "work" / f"{key}.json"
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Flow)
    session = device.open(artifact)
    if not isinstance(session, TwinSession):
        raise Refusal(f"device {device.name!r}", expected="twin: it counts what a dispatch does", where="cost model",
                      next_step="add --device twin")  # fmt: skip
    inputs = case_of(design, np.random.default_rng(SEED)).inputs
    if isinstance(design, DecodeAttentionDesign):
        inputs["params"][:2] = np.array([design.bucket], np.int32).view(NUMPY_DTYPE["bf16"])
    for operand in design.operands:
        session.allocate(operand.name, operand.type.nbytes)
        if operand.name in inputs:
            session.write(operand.name, 0, inputs[operand.name])
    session.bind("run", {index: operand.name for index, operand in enumerate(design.operands)})
    session.run("run")
    program = load_program(artifact.text, cache=cache).device(design.name)
    flow = flow_of(program, program.sequence("run"), session.totals()[design.name])
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, msgspec.json.encode(flow).decode())
    return flow
