# SPDX-License-Identifier: Apache-2.0
"""The verbs against what a newcomer gives them: one clear line, exit 2, a next step, and nothing left behind."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from judge import evidence
from judge.evidence import Kind
from judge.fixture import write_fixture
from pipeline.deployment import Deployment
from pipeline.intake import describe
from tests.scripts.run_verb import PACK, verb
from tests.stand_ins.byte_level import write_byte_level_tokenizer

pytestmark = pytest.mark.slow

VERBS = ("abandon", "ask", "compile", "demo", "deploy", "doctor", "emit", "evaluate", "gate", "generate", "import_results",
         "predict", "record", "run", "simulate", "status", "synthesize")  # fmt: skip


@pytest.fixture(scope="module")
def fixture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack's fixture model, in a directory whose path has spaces."""
    return write_fixture(tmp_path_factory.mktemp("my models") / "small llama")


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """An empty working directory with a space in its path."""
    path = tmp_path / "my work"
    path.mkdir()
    return path


@pytest.fixture
def model(fixture_model: Path, desk: Path) -> Path:
    """A copy of the fixture model that a test may spoil."""
    return Path(shutil.copytree(fixture_model, desk / "my model"))


@pytest.fixture
def started(model: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment that was begun and whose worker has not run: as after a kill in the first second."""
    monkeypatch.chdir(desk)
    write_byte_level_tokenizer(model, 512)
    yield Deployment.start(describe(str(model), device="twin", name="begun"))


def set_keys(**changes: object) -> Callable[[Path], None]:
    """A spoiler that sets keys of config.json."""

    def spoil(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def truncate_shard(model: Path) -> None:
    shard = model / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])


def index_a_tensor_that_no_shard_has(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"model.nowhere.weight": "model-00001-of-00001.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def only_an_adapter(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")


def only_gguf(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.gguf")


def only_bin(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def a_git_lfs_pointer(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 5\n")


def trained_without_a_tokenizer(model: Path) -> None:
    (model / "provenance.json").unlink()


def trained_with_another_tokenizer(name: str, text: str) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        (model / "provenance.json").unlink()
        (model / name).write_text(text)

    return spoil


# what was done to the model -> words that the one line must hold
SPOILED: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no config.json": (lambda m: (m / "config.json").unlink(), ("no config.json",)),
    "config.json is not JSON": (lambda m: (m / "config.json").write_text("{"), ("not valid JSON", "config.json")),
    "no safetensors": (lambda m: (m / "model.safetensors").unlink(), ("no safetensors",)),
    "GGUF only": (only_gguf, ("GGUF", "safetensors")),
    "a LoRA adapter": (only_an_adapter, ("LoRA", "merge")),
    "a truncated shard": (truncate_shard, ("truncated", "1150832", "1151832")),
    "an index that names a missing tensor": (index_a_tensor_that_no_shard_has, ("model.nowhere.weight", "no shard")),
    "an unknown key": (set_keys(sliding_windw=3), ("sliding_windw = 3", "--accept-key sliding_windw")),
    "weights as .bin only": (only_bin, (".bin", "save_pretrained")),
    "a pointer of Git LFS": (a_git_lfs_pointer, ("Git LFS", "git lfs pull")),
    "a mixture of experts": (
        set_keys(model_type="mixtral", num_local_experts=8),
        ("mixtral", "mixtures of experts", "take a dense model"),
    ),
    "biases": (set_keys(attention_bias=True), ("bias in qkv", "gemm", "take another model")),
    "quantised weights": (set_keys(quantization_config={"bits": 4}), ("quantization_config", "unquantised")),
    "a way to stretch positions that nobody wrote": (
        set_keys(rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}),
        ("yarn", "take another one"),
    ),
    "an unknown key of positions": (
        set_keys(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "twist": 2}),
        ("twist", "take another one"),
    ),
    "config and weights of two models": (set_keys(hidden_size=256), ("shape", "from the same place")),
    "trained weights without a tokenizer": (trained_without_a_tokenizer, ("no tokenizer.json", "--synthetic")),
    "a tokenizer in another form": (
        trained_with_another_tokenizer("tokenizer.model", "x"),
        ("only tokenizer.model", "AutoTokenizer"),
    ),
    "a broken tokenizer": (trained_with_another_tokenizer("tokenizer.json", "{}"), ("not a tokenizer",)),
    "an unknown architecture": (set_keys(model_type="mamba", architectures=["MambaForCausalLM"]), ("mamba", "llama")),
    "KV heads that do not divide": (set_keys(num_key_value_heads=3), ("num_key_value_heads = 3", "divisor")),
    "a vocabulary larger than the embedding": (set_keys(vocab_size=600), ("512", "600")),
    "a layer fewer than the weights have": (set_keys(num_hidden_layers=2), ("model.layers.2",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SPOILED)
def test_deploy_refuses_a_spoiled_model_and_leaves_nothing_behind(case: str, model: Path, desk: Path) -> None:
    spoil, words = SPOILED[case]
    spoil(model)
    refusal = verb("deploy", str(model), cwd=desk).refusal
    for word in words:
        assert word in refusal
    assert not (desk / "deployments").exists()


def test_declared_as_made_up_a_model_needs_no_tokenizer(model: Path, desk: Path) -> None:
    trained_without_a_tokenizer(model)
    ended = verb("doctor", "--model", str(model), "--synthetic", cwd=desk)
    assert (ended.code, ended.next) == (0, f"scripts/deploy.py '{model}' --synthetic")


def test_a_path_with_a_tilde_and_links_of_the_hubs_cache_are_models_too(
    model: Path, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_byte_level_tokenizer(model, 512)
    repository = desk / "hub" / "models--org--small"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    for path in list(model.iterdir()):
        (snapshot / path.name).symlink_to(path)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setenv("HOME", str(desk))
    monkeypatch.setenv("HF_HUB_CACHE", str(desk / "hub"))
    for given in ("~/my model", "org/small", str(repository), str(snapshot)):
        ended = verb("doctor", "--model", given, cwd=desk)
        assert ended.code == 0, ended.err
        assert "supported" in ended.out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("no such model",), "no directory 'no such model'"),
        (("MODEL", "--device", "xrt"), "xrt"),
        (("MODEL", "--phase", "8"), "choose from 0, 1, 2, 3"),
        (("MODEL", "--layers", "9"), "1 to 3"),
        (("MODEL", "--context", "300"), "256, 512"),
        (("MODEL", "--context", "256"), "at least 512"),
        (("MODEL", "--accept-key", "hidden_size"), "hidden_size"),
        (("MODEL", "--no-such-flag"), "--no-such-flag"),
        ((), "0 deployments"),
    ],
)
def test_deploy_refuses_bad_arguments_and_leaves_nothing_behind(
    arguments: tuple[str, ...], word: str, model: Path, desk: Path
) -> None:
    given = [str(model) if argument == "MODEL" else argument for argument in arguments]
    assert word in verb("deploy", *given, cwd=desk).refusal
    assert not (desk / "deployments").exists()


def test_doctor_says_that_the_fixture_is_supported_and_quotes_the_path_in_its_next_step(
    model: Path, desk: Path
) -> None:
    ended = verb("doctor", "--model", str(model), cwd=desk)
    assert ended.code == 0
    assert "supported: llama" in ended.out
    assert "synthetic" in ended.out
    assert ended.next == f"scripts/deploy.py '{model}'"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("status", ("nobody",)),
        ("gate", ("--name", "nobody", "--phase", "0")),
        ("generate", ("nobody", "--prompt", "hi")),
        ("ask", ("--name", "nobody", "why?")),
        ("abandon", ("nobody", "--reason", "none")),
        ("deploy", ("--name", "nobody")),
    ],
)
def test_a_deployment_that_is_not_there_is_named_together_with_those_that_are(
    name: str, arguments: tuple[str, ...], started: Deployment, desk: Path
) -> None:
    refusal = verb(name, *arguments, cwd=desk).refusal
    assert "nobody" in refusal
    assert "begun" in refusal


def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_compiled(
    started: Deployment, desk: Path
) -> None:
    context = started.description.choices.context
    refusal = verb("generate", "begun", "--prompt", "a " * context, cwd=desk).refusal
    assert f"at most {context} positions" in refusal
    assert not (desk / "deployments" / ".cache").exists()


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [("--tokens", "0", "at least 1"), ("--top-p", "2", "top_p"), ("--temperature", "-1", "temperature")],
)
def test_generate_refuses_settings_that_mean_nothing(
    option: str, value: str, word: str, started: Deployment, desk: Path
) -> None:
    assert word in verb("generate", "begun", "--prompt", "hi", option, value, cwd=desk).refusal


def test_status_of_a_deployment_that_was_begun_shows_every_phase_open(started: Deployment, desk: Path) -> None:
    ended = verb("status", cwd=desk)
    rows = [line for line in ended.out.splitlines() if line.startswith("  phase ")]
    assert rows
    assert all(row.endswith("open") for row in rows)
    assert ended.next.startswith("scripts/deploy.py --name begun")


def test_status_refuses_to_trust_an_edited_record(started: Deployment, desk: Path) -> None:
    verb("ask", "which context?", cwd=desk)
    path = started.evidence
    path.write_text(path.read_text().replace("which context?", "something else"))
    ended = verb("status", cwd=desk)
    assert ended.code == 1
    assert "evidence is broken at record 0" in ended.out
    assert ended.next


def test_a_lesson_is_recorded_with_the_record_that_shows_it(started: Deployment, desk: Path) -> None:
    verb("ask", "which context?", cwd=desk)
    shown = json.loads(started.evidence.read_text())["hash"][:12]
    words = ("--symptom", "it stood still", "--cause", "nobody asked", "--fix", "asking", "--check", "a review")
    ended = verb("record", "lesson", "phase-0", *words, "--evidence", shown, cwd=desk)
    assert ended.code == 0, ended.err
    assert ended.next == "scripts/status.py begun"
    assert "nobody asked" in (started.folder / "issues.md").read_text()
    words = ("--choice", "ask", "--instead-of", "guess", "--because", "it is 99.5 times better", "--evidence", shown)
    assert "99.5" in verb("record", "decision", "asking", *words, cwd=desk).refusal


@pytest.mark.slow
def test_a_question_blocks_until_a_human_answers(started: Deployment, desk: Path) -> None:
    asked = verb("ask", "which context?", cwd=desk)
    assert asked.code == 3
    assert "which context?" in asked.out
    held = verb("deploy", "--name", "begun", "--phase", "0", cwd=desk)
    assert held.code == 3
    assert not started.passed(), "a question holds the deployment before any work"
    assert "which context?" in held.out
    assert verb("ask", cwd=desk).code == 3
    answered = verb("ask", "--answer", "the longest", cwd=desk)
    assert answered.code == 0
    assert answered.next == "scripts/deploy.py --name begun"
    assert verb("ask", cwd=desk).code == 0
    assert "no open question" in verb("ask", "--answer", "again", cwd=desk).refusal


@pytest.mark.slow
def test_of_several_questions_each_is_answered_by_its_id(started: Deployment, desk: Path) -> None:
    verb("ask", "which context?", cwd=desk)
    both = verb("ask", "which licence?", cwd=desk)
    ids = re.findall(r"open question (\w+): which", both.out)
    assert len(ids) == 2
    assert "2 open questions" in verb("ask", "--answer", "the longest", cwd=desk).refusal
    assert "0 open questions" in verb("ask", "--question", "ffff", "--answer", "x", cwd=desk).refusal
    one = verb("ask", "--question", ids[1], "--answer", "Apache-2.0", cwd=desk)
    assert one.code == 3
    assert "which context?" in one.out
    assert ids[0] in one.next
    assert verb("status", cwd=desk).code == 3
    assert verb("ask", "--question", ids[0], "--answer", "the longest", cwd=desk).code == 0
    answers = [r.entry.body for r in evidence.records(started.evidence) if r.entry.kind == Kind.ANSWER]
    assert [(a["question"], a["answer"]) for a in answers] == [
        ("which licence?", "Apache-2.0"), ("which context?", "the longest")
    ]  # fmt: skip


@pytest.mark.slow
def test_a_design_of_a_deployments_plan_is_run_by_its_name(started: Deployment, desk: Path) -> None:
    absent = verb("compile", "--design", "gemm_m1", "--name", "begun", cwd=desk)
    assert absent.code == 2
    name = next(word.strip(",") for word in absent.refusal.split() if word.startswith("gemv_norm_"))
    compiled = verb("compile", "--design", name, "--name", "begun", cwd=desk)
    assert compiled.code == 0
    assert compiled.out.startswith(f"{name}: legal")
    assert compiled.next == f"scripts/run.py --design {name} --name begun"
    assert "neither a kernel nor --design" in verb("run", cwd=desk).refusal
    assert "a kernel and --design" in verb("run", "add", "--design", name, cwd=desk).refusal


def test_an_abandoned_deployment_keeps_its_evidence_and_is_not_taken_up_again(
    started: Deployment, model: Path, desk: Path
) -> None:
    assert started.marker.exists()
    assert verb("abandon", "begun", "--reason", "a trial", cwd=desk).code == 0
    assert not started.marker.exists()
    assert "a trial" in started.evidence.read_text()
    refusal = verb("deploy", str(model), "--name", "begun", cwd=desk).refusal
    assert "abandoned" in refusal


def test_a_deployment_is_not_overwritten_by_another_with_its_name(started: Deployment, model: Path, desk: Path) -> None:
    before = (started.folder / "deployment.json").read_bytes()
    refusal = verb("deploy", str(model), "--name", "begun", "--context", "512", cwd=desk).refusal
    assert "choices" in refusal
    assert (started.folder / "deployment.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("compile", ("gemm", "-M", "64"), "-K, -N"),
        ("run", ("softmax",), "invalid choice"),
        ("run", ("add", "-M", "64", "-N", "576", "--device", "xrt"), "xrt"),
        ("compile", ("add", "-M", "0", "-N", "576"), "argument -M: 0 is not"),
        ("run", ("rmsnorm", "-M", "64", "-N", "-8"), "argument -N: -8 is not"),
    ],
)
def test_a_kernel_without_a_legal_shape_is_refused(
    name: str, arguments: tuple[str, ...], word: str, desk: Path
) -> None:
    assert word in verb(name, *arguments, cwd=desk).refusal


def test_every_script_is_a_verb_that_these_tests_know() -> None:
    scripts = {path.stem for path in (PACK / "scripts").glob("*.py")} - {"__init__", "environment"}
    assert scripts == set(VERBS)


def test_a_verb_explains_itself(desk: Path) -> None:
    ended = verb("deploy", "--help", cwd=desk)
    assert ended.code == 0
    assert "usage: scripts/deploy.py" in ended.out
