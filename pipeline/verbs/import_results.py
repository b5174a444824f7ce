# SPDX-License-Identifier: Apache-2.0
"""import-results: what run_here.sh measured on an NPU becomes evidence marked `npu`."""

from __future__ import annotations

from pathlib import Path

from judge.policy import load_policy
from pipeline.files import require_file
from pipeline.returned import Returned, judge_results, open_results, record
from pipeline.verbs.console import End, parser


def import_results(arguments: list[str]) -> End:
    """Command line of scripts/import_results.py."""
    p = parser("import_results", "Take results of an emitted folder back as evidence marked npu.")
    p.add_argument("results", type=Path, help="the results.json that run_here.sh wrote")
    p.add_argument("--emitted", type=Path, help="the emitted folder (default: where the results are)")
    args = p.parse_args(arguments)
    policy = load_policy()
    path = require_file(args.results, "the results.json that run_here.sh wrote (docs/on-hardware.md)", "RESULTS")
    results = open_results(path, args.emitted.expanduser() if args.emitted else path.parent)
    returned = judge_results(results, policy)
    kept = record(results, returned, policy)
    for one in returned:
        print("\n".join(_lines(one)))
    passed = sum(one.passed for one in returned)
    print(f"{passed} of {len(returned)} passed; records {kept[0].sequence}..{kept[-1].sequence} in {results.evidence}")
    if passed == len(returned):
        name = results.manifest["subject"].get("deployment")
        return End(0, f"scripts/status.py {name}" if name else "scripts/deploy.py MODEL")
    failed = next(one for one in returned if not one.passed)
    skill = "debug-wrong-values" if failed.status == "COMPLETED" else "debug-resources"
    return End(1, f"skill {'debug-stale-data' if 'stale' in failed.said else skill}")


def _lines(one: Returned) -> list[str]:
    how = "judged from its outputs" if one.rejudged else "by run_here's own figures, whole output alone"
    text = [f"{one.name}: {'passed' if one.passed else 'FAILED'}, {one.status}, {how if one.figures else 'no figures'}"]
    text += [f"  {line}" for line in one.said.splitlines()[:5]]
    if "against_twin/rel" in one.figures:
        text.append(
            f"  no gate: furthest from the twin by {one.figures['against_twin/rel'].value:.3g} (sum|y-r| / sum|r|)"
        )
    if "time/median" in one.figures:
        low, middle, high = (one.figures[f"time/{n}"].value for n in ("quartile_low", "median", "quartile_high"))
        text.append(f"  npu: {middle:.1f} us a dispatch (quartiles {low:.1f} to {high:.1f}), wall time by XRT's caller")
    return text
