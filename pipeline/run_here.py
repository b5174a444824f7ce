# SPDX-License-Identifier: Apache-2.0
"""Runs the designs of an emitted folder on this machine's NPU. Python, NumPy and what stands in runtime/, nothing else.

    ./run_here.sh                     everything; results in results.json, outputs in outputs/
    ./run_here.sh --only NAME ...     some designs: for a first try; import-results takes whole results alone

Accuracy and time are separate passes. Times are wall time from start to completion of one dispatch, in rounds over all
designs that fit into the hardware contexts, so that drift hits them alike. Each pass that needs a context of another kind
(xclbin, full ELF) is a process of its own. Exit 0: everything completed and is within its thresholds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "runtime"))

import numpy as np  # noqa: E402

from npu.artifact import Artifact, KernelObject  # noqa: E402
from npu.device import DeviceFault  # noqa: E402
from npu.xrt import CONTEXTS, XrtDevice, XrtFault, XrtSession  # noqa: E402
from refusal import Refusal  # noqa: E402

LEAST_ITERATIONS = 20


def main(words: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="run_here.sh", description="Run the emitted designs on this NPU.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--iterations", type=int, default=LEAST_ITERATIONS, help="timed dispatches of each design")
    parser.add_argument("--flow", choices=["xclbin", "elf"], help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.iterations < LEAST_ITERATIONS:
        parser.error(f"--iterations {args.iterations}: at least {LEAST_ITERATIONS}, or the spread means nothing")
    if args.flow:
        return run_part(args.flow, args.only, args.iterations)
    manifest = check_files()
    (HERE / "results.json").unlink(missing_ok=True)
    results: dict[str, Any] = {
        "schema": 1, "emission": sha256(HERE / "manifest.json"), "started": stamp(), "iterations": args.iterations,
        "designs": {},
    }  # fmt: skip
    for flow in ("xclbin", "elf"):
        names = [n for n in manifest["designs"] if describe(n)["flow"] == flow and (not args.only or n in args.only)]
        if not names:
            continue
        partial = HERE / f"part-{flow}.json"
        partial.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "run_here.py"), "--flow", flow, "--iterations", str(args.iterations)]
        ended = subprocess.run([*command, "--only", *names], check=False).returncode
        if not partial.exists():
            print(f"the {flow} part ended with {ended} and wrote nothing: no results", file=sys.stderr)
            return ended or 2
        part = json.loads(partial.read_text())
        results["designs"] |= part.pop("designs")
        results |= part
        partial.unlink()
    return conclude(results)


def conclude(results: dict[str, Any]) -> int:
    """Seal and write results.json, last and whole; say how it ended."""
    results["ended"] = stamp()
    results["digest"] = hashlib.sha256(canonical(results)).hexdigest()
    temporary = HERE / ".results.tmp"
    temporary.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    temporary.replace(HERE / "results.json")
    good = [name for name, found in results["designs"].items() if found["passed"]]
    print(f"{len(good)} of {len(results['designs'])} designs completed within their thresholds; see results.json")
    return 0 if results["designs"] and len(good) == len(results["designs"]) else 1


def check_files() -> dict[str, Any]:
    """The manifest, after every file was held against it."""
    manifest = json.loads((HERE / "manifest.json").read_text())
    wrong = [p for p, digest in manifest["files"].items() if not (HERE / p).is_file() or sha256(HERE / p) != digest]
    if wrong:
        print(f"refused: files changed since they were emitted: {', '.join(wrong[:5])}", file=sys.stderr)
        sys.exit(2)
    return manifest


def run_part(flow: str, names: list[str], iterations: int) -> int:
    """One process: every design of one flow. Writes part-FLOW.json."""
    try:
        device = XrtDevice(HERE / "build")
    except Refusal as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 2
    found = {name: accuracy(device, name) for name in names}
    sound = [name for name in names if found[name]["status"] == "COMPLETED"]
    for first in range(0, len(sound), CONTEXTS):
        timing(device, sound[first : first + CONTEXTS], iterations, found)
    part = {"designs": found, "tools": device.toolchain.versions(), "tool_hashes": tool_hashes(device),
            "machine": machine(device)}  # fmt: skip
    device.close()
    (HERE / f"part-{flow}.json").write_text(json.dumps(part))
    return 0


def accuracy(device: XrtDevice, name: str) -> dict[str, Any]:
    """Compile a design, play its tape once, compare each output."""
    description = describe(name)
    artifact = artifact_of(name, description)
    result: dict[str, Any] = {
        "artifact": artifact.key, "gate": description["gate"], "status": "NOT_RUN", "dispatches": [], "reads": [],
        "passed": False, "seconds": [],
    }  # fmt: skip
    print(f"{name}: compiling", flush=True)
    try:
        session = device.open(artifact)
    except Refusal as refusal:
        print(f"  {refusal}")
        return result | {"status": "NOT_COMPILED", "said": str(refusal)[:4000]}
    result["build"] = session._built.key
    try:
        play(session, description, result)
        result["status"] = "COMPLETED"
    except XrtFault as fault:
        result |= {"status": fault.state, "said": str(fault)}
        result["dispatches"].append({"status": fault.state})
    except (DeviceFault, RuntimeError, MemoryError, OSError) as fault:
        result |= {"status": "FAULT", "said": f"{type(fault).__name__}: {fault}"}
    session.close()
    reads = result["reads"]
    result["passed"] = result["status"] == "COMPLETED" and bool(reads) and all(read["within"] for read in reads)
    print(f"  {result['status']}, {'within' if result['passed'] else 'NOT within'} its thresholds")
    return result


def play(session: XrtSession, description: dict[str, Any], result: dict[str, Any]) -> None:
    """The tape, in order. Outputs are stored as they came."""
    prepare(session, description)
    before: np.ndarray | None = None
    for step in description["tape"]:
        if step["do"] == "write":
            session.write(step["buffer"], step["offset"], np.load(HERE / step["file"]))
        elif step["do"] == "run":
            session.run(step["entry"])
            result["dispatches"].append({"status": "COMPLETED", "entry": step["entry"]})
        else:
            got = session.read(step["buffer"], step["offset"], (step["count"],), step["dtype"])
            read = judge(step, got, before, description["thresholds"])
            read["output"] = store(got)
            result["reads"].append(read)
            before = got


def prepare(session: XrtSession, description: dict[str, Any]) -> None:
    """Allocate and bind what the tape uses."""
    for buffer, nbytes in description["buffers"].items():
        session.allocate(buffer, nbytes)
    for entry, buffers in description["bindings"].items():
        session.bind(entry, dict(enumerate(buffers)))


def judge(
    step: dict[str, Any], got: np.ndarray, before: np.ndarray | None, thresholds: dict[str, float]
) -> dict[str, Any]:
    """Figures over the whole output. Worst positions and heads are left to the judge at import, who has the outputs."""
    twin = np.load(HERE / step["twin"])
    values, reference = widen(got, step["bf16"]), widen(twin, step["bf16"])
    found: dict[str, Any] = {"equal_to_twin": float((got == twin).mean()), "failures": []}
    if (values.view(np.uint32) & 0x7FFFFFFF == (0x7FA50000 if step["bf16"] else 0x7FA57FA5)).any():
        found["failures"].append("unwritten")
    if not np.isfinite(values).all():
        found["failures"].append("non_finite")
    if before is not None and "want" in step and before.tobytes() == got.tobytes():
        found["failures"].append("stale")
    if found["failures"]:
        return found | {"within": False}
    found["against_twin"] = figures(values, reference)
    if "want" not in step:
        # A module is compared with the twin; no threshold of the policy is for that. It must be there and finite.
        return found | {"within": True}
    order = np.load(HERE / step["order"]) if "order" in step else slice(None)
    found["against_oracle"] = figures(values[order], np.load(HERE / step["want"]).reshape(-1))
    held = {name: value for name, value in found["against_oracle"].items() if name in thresholds}
    return found | {"within": bool(held) and all(value <= thresholds[name] for name, value in held.items())}


def figures(got: np.ndarray, want: np.ndarray) -> dict[str, float]:
    """abs, rel, pearson_loss, bias, gain, as the policy defines them."""
    y, r = got.astype(np.float64), want.astype(np.float64)
    error, power = y - r, float(np.mean(r * r)) or 1e-300
    a, b = y - y.mean(), r - r.mean()
    spread = float(np.sqrt((a * a).sum() * (b * b).sum())) or 1e-300
    return {
        "abs": float(np.abs(error).max() / power**0.5),
        "rel": float(np.abs(error).sum() / (np.abs(r).sum() or 1e-300)),
        "pearson_loss": float(max(0.0, 1 - (a * b).sum() / spread)),
        "bias": float(abs(error.mean()) / power**0.5),
        "gain": float(abs((error * r).sum()) / (power * r.size)),
    }


def widen(values: np.ndarray, bf16: bool) -> np.ndarray:
    """FP32 of bf16 bits, by a shift; FP32 as it is."""
    return (values.astype(np.uint32) << 16).view(np.float32) if bf16 else values.astype(np.float32, copy=False)


def timing(device: XrtDevice, names: list[str], iterations: int, found: dict[str, Any]) -> None:
    """Interleaved rounds over the designs; one dispatch each to warm up. Values are not looked at here."""
    loaded = {}
    for name in names:
        description = describe(name)
        session = device.open(artifact_of(name, description))
        prepare(session, description)
        for step in description["tape"]:
            if step["do"] == "run":
                loaded[name] = (session, step["entry"])
                break
            if step["do"] == "write":
                session.write(step["buffer"], step["offset"], np.load(HERE / step["file"]))
    try:
        for round_ in range(iterations + 1):
            for name, (session, entry) in loaded.items():
                session.run(entry)
                if round_:
                    found[name]["seconds"].append(session.last_seconds)
    except DeviceFault as fault:
        for name in names:
            found[name] |= {"passed": False, "status": "FAULT", "said": f"while timing: {fault}", "seconds": []}
    for name, (session, _) in loaded.items():
        session.close()
        if found[name]["seconds"]:
            found[name]["time"] = spread(found[name]["seconds"])
            print(f"{name}: {1e6 * found[name]['time']['median']:.0f} us median of {iterations}")


def spread(seconds: list[float]) -> dict[str, float]:
    """Median with its spread, in seconds."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median": middle, "quartile_low": low, "quartile_high": high, "least": min(seconds), "most": max(seconds)}


def describe(name: str) -> dict[str, Any]:
    """A design's description."""
    return json.loads((HERE / "designs" / name / "design.json").read_text())


def artifact_of(name: str, description: dict[str, Any]) -> Artifact:
    """The artifact, from the files of this folder."""
    place = HERE / "designs" / name
    objects = tuple(
        KernelObject(obj["name"], place / obj["source"], tuple((key, value) for key, value in obj["defines"]))
        for obj in description["objects"]
    )
    text = (place / "design.mlir").read_text()
    return Artifact(text, objects, description["entry_device"], description["target"])


def store(values: np.ndarray) -> str:
    """Keep an output under its content; returns its place."""
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    path = HERE / "outputs" / f"{digest}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, values)
    return digest


def machine(device: XrtDevice) -> dict[str, str]:
    """What ran: system, kernel, and what XRT says of the device."""
    said = {"system": f"{platform.system()} {platform.release()} {platform.machine()}", "python": sys.version.split()[0],
            "numpy": np.__version__}  # fmt: skip
    keys = getattr(device.pyxrt, "xrt_info_device", None)
    for key in ("name", "bdf", "platform"):
        try:
            said[f"device_{key}"] = str(device.handle.get_info(getattr(keys, key)))
        except Exception as error:  # a figure of this page, never of a verdict
            said[f"device_{key}"] = f"unknown ({type(error).__name__})"
    return said


def tool_hashes(device: XrtDevice) -> dict[str, str]:
    """Tool -> SHA-256 of its program."""
    return {name: tool.sha256 for name, tool in sorted(device.toolchain.tools.items())}


def canonical(value: Any) -> bytes:
    """Canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp() -> str:
    """Now, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
