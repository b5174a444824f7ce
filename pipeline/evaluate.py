# SPDX-License-Identifier: Apache-2.0
"""Phase 7's process: every claim of a frozen deployment decided anew, from a copy of the pack, in a clean environment.

    python -m pipeline.evaluate FOLDER --nonce HEX --cache FOLDER [--positions N] [--tokens N]

It is started by `scripts/evaluate.py` from a copy of the pack that was made from its manifest. Nothing that the deployment
cached is read: kernels and programs are built again in an empty cache. Tokens, prompts and data come from the nonce, which
was drawn after the freeze. The stages run from cheap to dear and end after the first that finds a violation.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from judge import claims, evidence, fresh_data
from judge.device_log import layer_problems, log_problems, mac_problems
from judge.evaluation import Check, Evaluation, EvaluationLimits, check, differences
from judge.evidence import Kind, Record
from judge.fixture import write_fixture
from judge.fresh_data import judge_fresh
from judge.gates import judge_kernel, judge_model, judge_oracle, judge_runner
from judge.numbers import unjustified
from judge.own_limits import judge_with_own_limits
from judge.policy import Policy
from judge.verdict import Verdict
from kernels.designs.design import OpDesign
from npu.device import DeviceFault
from npu.kernel_source import source_sha256
from npu.twin.hostcc import find_compiler
from pipeline import documents, journal, manifest, worker
from pipeline.conduct import PHASES
from pipeline.context import CACHE_VARIABLE, PhaseContext, Subject, fixture_choices
from pipeline.deployment import OPTIMISATION, Deployment
from pipeline.evaluation_report import conclude
from pipeline.exercise import exercise, gate_of
from pipeline.files import convert, read_as, read_text
from pipeline.intake import hashes
from pipeline.model_session import legality_of
from pipeline.phases import block, integrate, model, oracle
from pipeline.phases.kernels import seed_of as recorded_seed
from pipeline.phases.outcome import Outcome
from pipeline.phases.own_runs import model_run
from pipeline.runner import Runner
from pipeline.texts import prompt_ids, seed_of, tokenizer_of
from pipeline.watched_run import WatchedRun, watch_greedy
from planner.module import write_module
from planner.plan import Choices, Plan, make_plan
from reference.oracle.config import load_config
from reference.oracle.tensors import open_weights
from refusal import Refusal

PROBE_TOKENS = 3
WORKPLACE = "evaluation-"  # and what names the deployment, and the nonce: the folder of the copy and its cache


class Obstacle(Exception):
    """What keeps the evaluation from deciding anything: a person has to take it away."""


class Evaluator:
    """One evaluation.

    Args:
        deployment: frozen. pack: the copy that this code runs from. cache: an empty folder.
        nonce: drawn by the caller from the operating system after the freeze. limits: how much to look at.
    """

    def __init__(
        self,
        deployment: Deployment,
        pack: Path,
        cache: Path,
        nonce: str,
        limits: EvaluationLimits,
        progress: Callable[[str], None],
    ) -> None:
        self.deployment, self.pack, self.cache, self.nonce, self.limits = deployment, pack, cache, nonce, limits
        self.say = progress
        self.checks: list[Check] = []
        self.facts = {"nonce": nonce, "pack": manifest.digest(manifest.read(pack))}
        self.description = deployment.description
        self.synthetic = self.description.synthetic
        self.draw = 0  # of the gate that is judged

    def run(self) -> Evaluation:
        """All stages, until one finds a violation or an obstacle."""
        obstacle = ""
        try:
            self._obstacles()
            for name, stage in self._stages():
                self.say(f"evaluation: {name}")
                self._stage(name, stage)
                if any(not found.holds for found in self.checks):
                    break
        except Obstacle as found:
            obstacle = str(found)
        if self.description.partial:  # said in any case: it can never be proven
            self.checks.append(
                check("whole-model", [f"only layers {list(self.description.choices.layers or ())} were deployed"])
            )
        return Evaluation(
            self.deployment.name,
            tuple(self.checks),
            self.nonce,
            self.synthetic,
            self.description.device,
            obstacle,
            self.facts,
        )

    def _stages(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("pack-as-shipped", self._pack), ("evidence-unbroken", self._records), ("every-gate-passed", self._claims),
            ("documents-from-evidence", self._documents), ("artifacts-rebuilt", self._rebuild),
            ("oracle-holds", self._oracle), ("all-layers-ran", self._device), ("model-holds", self._model),
            ("tokens-repeat", self._runner), ("blocks-hold", self._blocks), ("kernels-hold", self._kernels),
            ("whole-model", self._whole),
        ]  # fmt: skip

    def _stage(self, name: str, stage: Callable[[], None]) -> None:
        """Run one stage; a refusal or a fault of the device inside it violates what the stage is about."""
        try:
            stage()
        except Refusal as refusal:
            self.checks.append(check(name, [f"refused: {refusal}"]))
        except DeviceFault as fault:
            self.checks.append(check(name, [f"device fault: {str(fault)[:800]}"]))

    def _add(self, name: str, problems: list[str], looked_at: str = "") -> None:
        self.checks.append(check(name, problems, looked_at))

    # ---- files and records ----

    def _obstacles(self) -> None:
        if not Path(self.description.model_dir).is_dir():
            raise Obstacle(f"the model directory {self.description.model_dir} is not there; put it back")
        if self.deployment.state().question is not None:
            raise Obstacle(
                f"a question to a human is open; answer it: scripts/ask.py --name {self.deployment.name} --answer TEXT"
            )
        try:
            self.device = worker.open_device(self.description.device, self.cache)
            if self.description.device == "twin":
                find_compiler()
        except Refusal as refusal:
            raise Obstacle(str(refusal)) from refusal

    def _pack(self) -> None:
        found = manifest.check(self.pack)
        self._add("pack-as-shipped", found.lines(), f"{len(manifest.read(self.pack))} files")

    def _records(self) -> None:
        """The chain itself; later stages read its records."""
        state = evidence.verify_chain(self.deployment.evidence)
        self.chain: list[Record] = list(evidence.records(self.deployment.evidence)) if state.intact else []
        self.facts["evidence"] = f"{state.records} records, head {state.head}"
        self.gates = claims.gate_records(self.chain)
        self.judged = list(self.gates.values())
        problems = claims.chain_problems(state, self.chain) + claims.shape_problems(self.judged)
        self._add("evidence-unbroken", problems, f"{state.records} records")
        if problems:
            return
        self.freeze = claims.last_freeze(self.chain)
        self.facts["frozen"] = self.freeze.time
        if notes := claims.clock_notes(self.chain):
            self.facts["clock"] = f"{'; '.join(notes)} (the chain has the order)"

    def _claims(self) -> None:
        """What records say, held against files: cheap, and all of it is looked at."""
        counted = [*self.judged, self.freeze]
        self.ctx = PhaseContext(
            self.deployment, self.device, self.cache, self.say, nonce=self.nonce, pack=self.facts["pack"]
        )
        policy = self.ctx.policy
        self._add("pack-as-shipped", claims.pack_problems(counted, self.facts["pack"]), f"{len(counted)} records")
        described = evidence.digest(msgspec.to_builtins(self.description))
        self._add("deployment-as-frozen", claims.description_problems(self.freeze, described), "deployment.json")
        directory = Path(self.description.model_dir)
        config = load_config(directory, self.description.accepted_keys)
        files = hashes(directory, open_weights(config))
        self._add(
            "inputs-unchanged", claims.input_problems(counted, files), f"{len(files)} files, {len(counted)} records"
        )
        provenance = (read_as(directory / "provenance.json", dict) or {}).get("weights") == "synthetic"
        self.synthetic = self.synthetic or provenance
        labels = claims.label_problems(counted, self.description.synthetic, provenance)
        self._add("weights-labelled", labels, "provenance.json, description, records and figures")
        figures = sum(len(record.entry.figures) for record in self.judged)
        self._add("thresholds-of-the-policy", claims.policy_problems(self.judged, policy), f"{figures} figures")
        passed = claims.gate_problems(self.chain, self._expected()) + claims.order_problems(self.chain, PHASES)
        self._add("every-gate-passed", passed, f"phases {list(PHASES)}")

    def _expected(self) -> claims.ExpectedGates:
        """phase -> gates that must have been judged, derived from the description alone; phase 1's follow from the plan."""
        mine, choices = ("fixture" if self.description.synthetic else "model"), self.description.choices
        both = {"fixture": "fixture", "model": mine}
        blocks = {}
        for subject, layer in [("fixture", 1), *(("model", layer) for layer in self._block_layers())]:
            blocks[f"{subject} layer {layer} prefill"] = f"phase2.{both[subject]}.{choices.prefill_mode}"
            blocks[f"{subject} layer {layer} decode"] = f"phase2.{both[subject]}.bf16"
        short = {"plan before, short gate": f"phase3.{mine}.mixed"}
        return {
            0: {name: f"phase0.{thresholds}" for name, thresholds in both.items()},
            1: {},
            2: blocks,
            3: {name: f"phase3.{thresholds}.mixed" for name, thresholds in both.items()},
            4: short | {"speed": "phase4.speed"},
            5: short | {"speed": "phase5.speed"},
            6: {"runner": "phase6"},
        }

    def _block_layers(self) -> list[int]:
        planned = self.description.choices.layers or tuple(range(self.ctx.model.config.num_hidden_layers))
        return sorted({planned[0], planned[len(planned) // 2], planned[-1]})

    def _documents(self) -> None:
        problems = [
            f"{name}: its generated part is not what the evidence gives" for name in documents.stale(self.deployment)
        ]
        known = journal.known_numbers(self.deployment, self.chain)
        for record in self.chain:
            if record.entry.kind in (Kind.DECISION, Kind.LESSON):
                strange = journal.worded_numbers(record.entry, known)
                problems += [f"{record.entry.kind} {record.hash[:12]}: {problem}" for problem in strange]
        pages = [page for page in sorted(self.deployment.folder.glob("*.md")) if page.name != "evaluation_report.md"]
        for page in pages:
            before, _, rest = read_text(page).partition(documents.BEGIN)
            inside, _, after = rest.partition(documents.END)
            prose = before + "\n" * inside.count("\n") + after  # what is between the markers was compared whole
            problems += [f"{page.name}: {problem}" for problem in unjustified(prose, known)]
        self._add("documents-from-evidence", problems, ", ".join(page.name for page in pages))

    # ---- built again ----

    def _choices_at(self, phase: int) -> Choices:
        """The choices under which a phase's record was made."""
        if phase in OPTIMISATION:
            raw = self.gates[phase].entry.body.get("data", {}).get("choices")
            return convert(raw, Choices, self.deployment.evidence)
        return self.description.choices if phase < OPTIMISATION[0] else self.deployment.choices()

    def _rebuild(self) -> None:
        """Plan and module text of the model and of the fixture, under the choices of every record that names an artifact."""
        problems, looked = [], 0
        write_fixture(self.cache / "fixture")
        configs = {"model": self.ctx.model.config, "fixture": load_config(self.cache / "fixture")}
        keys: dict[str, str] = {}
        for phase, record in self.gates.items():
            for name, config in configs.items():
                recorded = record.entry.inputs.get(f"artifact {name}")
                if recorded is None:
                    continue
                choices = self._choices_at(phase)
                choices = choices if name == "model" else fixture_choices(choices)
                at = f"{name} {choices!r}"
                if at not in keys:
                    keys[at] = write_module(self._plan(config, choices)).key
                problems += differences(f"phase {phase}, artifact", {name: keys[at]}, {name: recorded})
                looked += 1
        self.plan = self._plan(self.ctx.model.config, self.description.choices)
        sources = {f"kernel {o.name}": source_sha256(o.source) for design in self.plan.designs for o in design.objects}
        recorded = {n: v for n, v in self.gates[1].entry.inputs.items() if n.startswith("kernel ")}
        problems += differences("phase 1:", sources, recorded)
        self._add("artifacts-rebuilt", problems, f"{looked} artifacts, {len(sources)} kernel objects")
        gates = {design.name: f"phase1.{gate_of(design)}" for design in self.plan.designs}
        self._add(
            "every-gate-passed", claims.gate_problems(self.chain, {1: gates}), f"{len(gates)} designs of the plan"
        )

    def _plan(self, config, choices: Choices) -> Plan:
        return make_plan(config, choices, legal=legality_of(self.cache))

    # ---- run again ----

    @property
    def _policy(self) -> Policy:
        """The policy's thresholds with an evaluation's own amounts."""
        least = self.ctx.policy.limits
        limits = msgspec.structs.replace(
            least,
            text_positions=(self.limits.text_positions,),
            greedy_tokens=(self.limits.greedy_tokens,) * self.limits.prompts,
        )
        return msgspec.structs.replace(self.ctx.policy, limits=limits)

    def _fresh(self, name: str, gates: dict[str, tuple[Subject | None, Callable[[], Verdict]]]) -> None:
        """Judge gates on fresh data, label -> (subject whose tokens are drawn, gate); see judge.fresh_data."""
        problems, again, looked = [], [], 0
        for label, (subject, gate) in gates.items():

            def draw(number: int, subject: Subject | None = subject, gate: Callable[[], Verdict] = gate) -> Verdict:
                self.draw = number
                if subject is not None:
                    subject.nonce = f"{self.nonce} {number}"
                return gate()

            draws = judge_fresh(draw)
            problems += fresh_data.problems(label, draws)
            again += [label] * (len(draws) - 1)
            looked += sum(verdict.looked_at for verdict in draws)
        redrawn = f"; drawn again: {', '.join(sorted(set(again)))}" if again else ""
        self._add(name, problems, f"{len(gates)} gates, {looked} judged{redrawn}" if looked else "")

    def _oracle(self) -> None:
        self._fresh(
            "oracle-holds", {s.name: (s, partial(self._judge_oracle, s)) for s in (self.ctx.fixture, self.ctx.model)}
        )

    def _judge_oracle(self, subject: Subject) -> Verdict:
        return judge_oracle(subject.thresholds, oracle.prove(subject), self.ctx.policy)

    def _device(self) -> None:
        """A short run first: whether the device works at all on what it should."""
        self._watched([watch_greedy(self.ctx.model.session(), prompt_ids(self.ctx.model, 7), PROBE_TOKENS)])

    def _model(self) -> None:
        subjects = (self.ctx.model, self.ctx.fixture)
        self._fresh("model-holds", {s.name: (s, partial(self._judge_model, s)) for s in subjects})

    def _judge_model(self, subject: Subject) -> Verdict:
        session, tokens = subject.session(), self.limits.greedy_tokens
        runs = [
            watch_greedy(session, prompt_ids(subject, index), tokens, f"fresh prompt {index + 1}")
            for index in range(self.limits.prompts)
        ]
        self._watched(runs, subject)
        text = model.text_run(self.ctx, subject, session, 0, self.limits.text_positions)
        repeat = model.repeat_run(session, [prompt_ids(subject, index) for index in (0, 1, 0)])
        greedy = [run.greedy for run in runs]

        def judge(policy: Policy) -> Verdict:
            teacher = lambda ids: subject.logits(list(ids))  # noqa: E731
            return judge_model(subject.thresholds, "mixed", [text], greedy, repeat, teacher, policy, phase=7)

        few = self.limits
        own = model_run(
            subject, self._policy.limits, texts={0: few.text_positions},
            greedy=dict.fromkeys(range(few.prompts), few.greedy_tokens),
        )  # fmt: skip
        return judge_with_own_limits(judge, self._policy, own, self.say)

    def _watched(self, runs: list[WatchedRun], subject: Subject | None = None) -> None:
        subject = subject or self.ctx.model
        config, layers, work = subject.config, [], []
        if not self.description.partial or subject is self.ctx.fixture:
            layers += layer_problems(config, [step for run in runs for step in run.steps])
        for run in runs:
            layers += log_problems(run.steps, run.log)
            work += run.problems
            if subject.layers == config.num_hidden_layers:
                work += mac_problems(config, run.steps, run.macs)
        dispatches = sum(len(run.log) for run in runs)
        counted = sum(sum(run.macs.values()) for run in runs)
        self._add(
            "all-layers-ran",
            layers,
            f"{subject.name}: {sum(len(r.steps) for r in runs)} steps, {dispatches} dispatches",
        )
        self._add("work-on-the-device", work, f"{subject.name}: {counted} multiply-adds counted on the device")

    def _runner(self) -> None:
        whole = self.deployment.whole_model()
        if whole is None:
            raise Refusal("no record has greedy tokens", expected="those of the model's gate", where="evidence.jsonl")
        recorded = whole.entry.body["data"]["greedy"]
        runner = Runner(self.ctx.model.session(), tokenizer_of(self.ctx.model))
        produced = [token for token, _ in runner.stream(recorded["prompt_ids"], integrate.TOKENS, stop=False)]
        verdict = judge_runner(produced, recorded["ids"][: integrate.TOKENS], self.ctx.policy)
        lines = [] if verdict.passed else [line.strip() for line in verdict.lines()]
        self._add("tokens-repeat", lines, f"{len(produced)} tokens")

    def _blocks(self) -> None:
        # Under the choices of phase 2, for which its thresholds hold; what phases 4 and 5 accepted, attention in bfp16 say, is
        # judged by its kernels and by the whole model.
        chosen = self._choices_at(2)
        fixture, deployed = self.ctx.fixture.with_choices(fixture_choices(chosen)), self.ctx.model.with_choices(chosen)
        blocks = [(fixture, 1), *((deployed, layer) for layer in self._block_layers())]
        keys: dict[str, str] = {}
        gates = {
            f"{subject.name} layer {layer} {path}": (subject, partial(self._judge_block, subject, layer, path, keys))
            for subject, layer in blocks
            for path in ("prefill", "decode")
        }
        self._fresh("blocks-hold", gates)
        if all(self.gates[2].sequence < self.gates[phase].sequence for phase in OPTIMISATION if phase in self.gates):
            recorded = {n: v for n, v in self.gates[2].entry.inputs.items() if n in keys}
            self._add("artifacts-rebuilt", differences("phase 2:", keys, recorded), f"{len(keys)} block artifacts")

    def _judge_block(self, subject: Subject, layer: int, path: str, keys: dict[str, str]) -> Verdict:
        outcome = Outcome()
        block.judge_layer(self.ctx, subject, layer, outcome)
        keys |= {name: value for name, value in outcome.inputs.items() if name.startswith("artifact")}
        return outcome.verdicts[f"{subject.name} layer {layer} {path}"]

    def _kernels(self) -> None:
        """Every design: once on the recorded data, whose figures must come out again, then on fresh data."""
        recorded = self.gates[1].entry.body["gates"]
        repeats, compared = [], 0
        final = self._plan(self.ctx.model.config, self.ctx.model.choices)
        designs = {design.name: design for design in (*self.plan.designs, *final.designs)}
        for index, (name, design) in enumerate(designs.items()):
            if name in recorded:
                self.say(f"evaluation: kernel {index + 1} of {len(designs)}: {name}")
                again = self._judge_kernel(design, recorded_seed(design))
                repeats += claims.repeat_problems(name, recorded[name], again, self.limits)
                compared += len(again.findings)
        self._add("figures-repeat", repeats, f"{compared} figures")
        self._fresh("kernels-hold", {name: (None, partial(self._fresh_kernel, d)) for name, d in designs.items()})

    def _fresh_kernel(self, design: OpDesign) -> Verdict:
        return self._judge_kernel(design, seed_of(self.nonce, f"kernel {design.name} {self.draw}"))

    def _judge_kernel(self, design: OpDesign, seed: int) -> Verdict:
        dispatches, _ = exercise(design, self.device, seed)
        return judge_kernel(gate_of(design), dispatches, self.ctx.policy)

    def _whole(self) -> None:
        if not self.description.partial:
            self._add("whole-model", [], f"{self.ctx.model.config.num_hidden_layers} layers")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def remove_workplace(folder: Path) -> None:
    """Remove what `scripts/evaluate.py` made for this run, and never anything else: a folder of its name with its two parts."""
    ours = folder / "pack" == manifest.PACK and folder.name.startswith(WORKPLACE)
    if ours and {path.name for path in folder.iterdir()} <= {"pack", "cache"}:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """The process: takes the deployment's lock, evaluates, writes the report, and worker.json last."""
    p = argparse.ArgumentParser(prog="python -m pipeline.evaluate")
    p.add_argument("folder", type=Path)
    p.add_argument("--nonce", required=True)
    p.add_argument("--cache", type=Path, required=True)
    p.add_argument("--positions", type=int, default=EvaluationLimits().text_positions)
    p.add_argument("--tokens", type=int, default=EvaluationLimits().greedy_tokens)
    args = p.parse_args(arguments)
    # Also what is remembered of files, such as their hashes, is found out anew.
    os.environ[CACHE_VARIABLE] = str(args.cache.absolute())
    limits = EvaluationLimits(text_positions=args.positions, greedy_tokens=args.tokens)
    deployment = Deployment(args.folder.absolute())
    os.chdir(deployment.folder.parent.parent)
    with worker.lock(deployment).acquire(timeout=30), worker.ending(deployment) as end:
        args.cache.mkdir(parents=True, exist_ok=True)
        evaluation = Evaluator(
            deployment, manifest.PACK, args.cache.absolute(), args.nonce, limits, deployment.log
        ).run()
        end.code = conclude(deployment, evaluation)
        remove_workplace(args.cache.absolute().parent)
    return end.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
