# SPDX-License-Identifier: Apache-2.0
"""Files that are broken, disks that are full, values that are none: exit 2 and one clear line. A fault of the pack is told from them."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from judge import evidence
from judge.evidence import GENESIS, Entry, Kind, digest
from judge.fixture import write_fixture
from pipeline.context import CACHE_VARIABLE
from pipeline.deployment import Deployment
from pipeline.intake import describe
from pipeline.verbs.console import End, run
from refusal import Refusal
from tests.scripts.run_verb import PACK, Ended, verb
from tests.stand_ins.byte_level import write_byte_level_tokenizer

NOT_UTF8 = b"caf\xe9"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture model with a tokenizer."""
    folder = write_fixture(tmp_path_factory.mktemp("models") / "small")
    write_byte_level_tokenizer(folder, 512)
    return folder


@pytest.fixture
def started(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment that was begun and whose worker has not run."""
    monkeypatch.chdir(tmp_path)
    yield Deployment.start(describe(str(model), device="twin", name="begun"))


@pytest.fixture
def ended_as(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """How a verb that is a function ends: the entry of every program, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(what: Callable[[list[str]], End], *arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["scripts/some.py", *arguments])
        with pytest.raises(SystemExit) as end:
            run(what)
        said = capsys.readouterr()
        return Ended(end.value.code, said.out, said.err)

    return call


def raising(error: BaseException) -> Callable[[list[str]], End]:
    def some_verb(arguments: list[str]) -> End:
        raise error

    return some_verb


# ---- the machine ----


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "No space left"),
        (errno.EDQUOT, "uota"),
        (errno.EROFS, "Read-only"),
        (errno.EACCES, "Permission denied"),
        (errno.EIO, "nput/output error"),
        (errno.EMFILE, "open files"),
    ],
)
def test_what_the_machine_denies_is_refused_with_the_path(ended_as, number: int, word: str) -> None:
    error = OSError(number, __import__("os").strerror(number), "deployments/x/state.json")
    refusal = ended_as(raising(error)).refusal
    assert word in refusal
    assert "deployments/x/state.json" in refusal


def test_too_little_memory_is_refused(ended_as) -> None:
    assert "memory" in ended_as(raising(MemoryError())).refusal


@pytest.mark.parametrize(
    "bug", [TypeError("unsupported operand"), KeyError("gates"), OSError("no number"), ValueError("x")]
)
def test_a_fault_of_the_pack_is_no_bad_input_and_its_traceback_is_kept(
    ended_as, bug: Exception, tmp_path: Path
) -> None:
    ended = ended_as(raising(bug))
    assert ended.code == 4
    (line,) = ended.err.splitlines()
    assert line.startswith("fault of the pack: ")
    assert type(bug).__name__ in line
    (kept,) = (tmp_path / "deployments" / ".cache" / "faults").iterdir()
    assert str(kept) in line
    assert "in some_verb" in kept.read_text()
    assert ended.next


def test_a_traceback_that_cannot_be_kept_is_printed(ended_as, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    ended = ended_as(raising(TypeError("unsupported operand")))
    assert ended.code == 4
    assert "in some_verb" in ended.err


def full_disk() -> None:
    """No file may grow: the program's writes fail as they do on a full disk, also for root."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    "words",
    [("ask", "why?"), ("abandon", "begun", "--reason", "none"), ("deploy", "--name", "begun"), ("deploy", "MODEL")],
)
def test_a_full_disk_is_refused_in_one_line(words: tuple[str, ...], started: Deployment, model: Path) -> None:
    name, *arguments = (str(model) if word == "MODEL" else word for word in words)
    extra = ["--name", "other"] if words[-1] == "MODEL" else []
    done = subprocess.run(
        [sys.executable, str(PACK / "scripts" / f"{name}.py"), *arguments, *extra], cwd=Path.cwd(), text=True, check=False,
        capture_output=True, timeout=120, preexec_fn=full_disk,
    )  # fmt: skip
    assert Ended(done.returncode, done.stdout, done.stderr).refusal
    assert not (Path("deployments") / "other" / "deployment.json").exists()


def test_a_deployments_folder_that_is_a_file_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "deployments").write_text("")
    assert "deployments" in verb("deploy", str(model), cwd=tmp_path).refusal


# ---- a deployment's own files ----

SPOILED = {"not JSON": b"{", "empty": b"", "not UTF-8": b'"' + NOT_UTF8 + b'"', "a list": b"[]", "a number": b"7"}


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("name", ["deployment.json", "state.json", "worker.pid", "worker.json"])
def test_a_broken_file_of_a_deployment_is_named(name: str, how: str, started: Deployment, ended_as) -> None:
    from pipeline.verbs.status import status

    (started.folder / name).write_bytes(SPOILED[how])
    refusal = ended_as(status, "begun").refusal
    assert name in refusal


@pytest.mark.parametrize(
    "state", [{"phases": []}, {"phases": {"0": 3}}, {"detail": None}, {"frozen": "yes"}, {"question": 7}]
)
def test_a_state_of_wrong_types_is_named(state: dict, started: Deployment, ended_as) -> None:
    from pipeline.verbs.status import status

    (started.folder / "state.json").write_text(json.dumps(state))
    refusal = ended_as(status, "begun").refusal
    assert "state.json" in refusal
    (started.folder / "state.json").unlink()  # as the line says
    assert ended_as(status, "begun").code == 2  # no worker has run yet; nothing is refused
    assert "remove" in refusal


def test_a_broken_evaluation_is_no_verdict(started: Deployment) -> None:
    from pipeline.evaluation_report import verdict_of

    for content in SPOILED.values():
        (started.folder / "evaluation.json").write_bytes(content)
        assert verdict_of(started) is None


def forged(path: Path, change: Callable[[dict], None], kind: Kind = Kind.GATE) -> None:
    """A chain of one record that fits in itself, whatever stands in it."""
    body = {
        "passed": True,
        "gates": {"g": {"gate": "phase1.add", "passed": True, "findings": [], "failures": []}},
        "data": {},
    }
    record = {
        "schema": 1, "sequence": 0, "previous": GENESIS, "time": "2026-01-01T00:00:00+00:00",
        "entry": {"kind": str(kind), "subject": "phase-0", "body": body, "inputs": {}},
    }  # fmt: skip
    change(record["entry"])
    path.write_text(json.dumps(record | {"hash": digest(record)}) + "\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(subject="phase-first"),
        lambda e: e["body"].update(passed="yes"),
        lambda e: e["body"].update(gates=[]),
        lambda e: e["body"]["gates"].update(g=3),
        lambda e: e["body"]["gates"]["g"].update(passed=None),
        lambda e: e["body"]["gates"]["g"].update(findings=[{"metric": "abs", "value": "small"}]),
        lambda e: e["body"].update(data=[1]),
        lambda e: e["body"].pop("gates"),
        lambda e: e.update(kind="question", body={}),
        lambda e: e.update(kind="experiment", body={"phase": "4"}),
        lambda e: e.update(kind="decision", body={"alternatives": 3}),
        lambda e: e.update(kind="lesson", body={"fix": None}),
        lambda e: e.update(kind="evaluation", body={"verdict": 1}),
        lambda e: e.update(kind="question", body={"question": 3}),
        lambda e: e.update(kind="freeze", body={"head": 3}),
    ],
)
def test_a_record_of_wrong_types_breaks_the_chain_there(
    change: Callable[[dict], None], started: Deployment, ended_as
) -> None:
    from pipeline.verbs.status import status

    forged(started.evidence, change)
    state = evidence.verify_chain(started.evidence)
    assert state.broken == 0, state
    ended = ended_as(status, "begun")
    assert ended.code == 1
    assert "evidence is broken at record 0" in ended.out


@pytest.mark.parametrize("line", [b"[]", b"7", b"null", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_a_line_that_is_no_record_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    path.write_bytes(line + b"\n")
    state = evidence.verify_chain(path)
    assert (state.broken, state.line) == (0, 1)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", '"\\ud800"'])
def test_a_value_that_has_no_canonical_form_is_named(value: str, tmp_path: Path) -> None:
    path = tmp_path / "evidence.jsonl"
    evidence.append(path, Entry(Kind.DECISION, "x", {"a": 12345}))
    path.write_text(path.read_text().replace("12345", value))
    assert evidence.verify_chain(path).broken == 0


def test_a_registry_of_any_content_is_passed_by(tmp_path: Path) -> None:
    from pipeline.registry import Registry

    lines = [b"{", b"[]", b'"' + NOT_UTF8 + b'"', b'{"design": 3}', b"null"]
    (tmp_path / "registry.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    registry = Registry(tmp_path, tmp_path / "none", tmp_path / "none")
    assert list(registry.valid("p", "e")) == []


def test_prose_that_is_not_utf8_is_named(started: Deployment, ended_as) -> None:
    from pipeline.verbs.ask import ask

    (started.folder / "plan.md").write_bytes(NOT_UTF8)
    assert "plan.md" in ended_as(ask, "why?").refusal


# ---- arguments ----


def test_words_that_are_not_utf8_are_refused(ended_as, started: Deployment) -> None:
    from pipeline.verbs.ask import ask

    assert "UTF-8" in ended_as(ask, NOT_UTF8.decode(errors="surrogateescape")).refusal
    assert not started.evidence.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", v) for v in ("nan", "inf", "-1")]
    + [("--top-p", v) for v in ("0", "-1", "2", "nan", "inf")]
    + [("--top-k", "-1"), ("--seed", "-1"), ("--tokens", "-3")],
)
def test_generate_takes_only_values_that_mean_something(option: str, value: str, started: Deployment, ended_as) -> None:
    from pipeline.verbs.generate import generate

    refusal = ended_as(generate, "begun", "--prompt", "hi", f"{option}={value}").refusal
    assert option.strip("-").replace("-", "_") in refusal.replace("-", "_")
    assert not Path("deployments/.cache").exists()


@pytest.mark.parametrize("value", ["nan", "-1", "soon"])
def test_no_verb_waits_for_a_time_that_is_none(value: str, started: Deployment, ended_as) -> None:
    from pipeline.verbs.status import status

    assert "--wait" in ended_as(status, "begun", f"--wait={value}").refusal


def test_run_takes_no_seed_below_zero(ended_as) -> None:
    from pipeline.verbs.kernel import run_kernel

    assert "seed" in ended_as(run_kernel, "add", "-M", "64", "-N", "64", "--seed=-1").refusal


def test_an_environment_that_cannot_be_made_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scripts import environment

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(environment, "location", lambda: Path("nowhere"))
    monkeypatch.setattr(environment, "make", full)
    with pytest.raises(SystemExit) as end:
        environment.enter()
    said = capsys.readouterr()
    assert end.value.code == 2
    assert "No space left" in said.err
    assert said.out.startswith("next: ")


# ---- files of texts, prompts and thresholds ----


def test_prompts_and_texts_that_are_not_utf8_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from judge.policy import load_policy
    from judge.prompts import load_prompts
    from reference import texts

    spoiled = tmp_path / "prompts.toml"
    spoiled.write_bytes(b'[[greedy]]\nname = "' + NOT_UTF8 + b'"\n')
    for load in (load_prompts, load_policy):
        with pytest.raises(Refusal, match=r"prompts\.toml"):
            load(spoiled)
    (tmp_path / "sources.toml").write_text(
        '[[text]]\nname = "a"\nfile = "a.txt"\ntokens = 1\nsource = "s"\nauthor = "a"\nrights = "r"\n'
    )
    (tmp_path / "a.txt").write_bytes(NOT_UTF8)
    monkeypatch.setattr(texts, "_HERE", tmp_path)
    with pytest.raises(Refusal, match=r"a\.txt"):
        texts.texts()
