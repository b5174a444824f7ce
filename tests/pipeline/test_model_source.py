# SPDX-License-Identifier: Apache-2.0
"""What a model argument may be: a directory in any spelling, or a hub id that the local cache holds whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from judge.fixture import write_fixture
from pipeline.intake import describe
from pipeline.model_source import HubId, cache_root, cached, parse_hub_id, resolve
from refusal import Refusal

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "f" * 40


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fixture(tmp_path_factory.mktemp("plain") / "small llama")


@pytest.fixture
def hub_cache(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local cache with one whole snapshot of org/small, laid out with links as huggingface_hub does."""
    root = tmp_path / "hf home" / "hub"
    lay_snapshot(root, plain)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    return root


def lay_snapshot(root: Path, files: Path, commit: str = COMMIT) -> Path:
    """blobs/, a snapshot of links, and refs/main."""
    folder = root / "models--org--small"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    for index, file in enumerate(sorted(files.iterdir())):
        blob = folder / "blobs" / f"{index:040x}"
        shutil.copyfile(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return snapshot


def test_a_directory_is_found_relative_with_a_tilde_with_spaces_and_behind_a_link(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(plain.parent))
    monkeypatch.chdir(plain.parent)
    link = tmp_path / "a link"
    link.symlink_to(plain)
    for spelling in ("small llama", "./small llama/", "~/small llama", str(plain), str(link)):
        assert resolve(spelling).directory == plain.resolve(), spelling


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("Qwen/Qwen3-0.6B", HubId("Qwen/Qwen3-0.6B")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("hf://org/name", HubId("org/name")),
        ("gpt2", None), ("./org/name", None), ("/org/name", None), ("~/name", None), ("org/../name", None),
        ("a/b/c", None), ("org/my name", None),
    ],
)  # fmt: skip
def test_what_spells_a_hub_id(argument: str, expected: HubId | None) -> None:
    assert parse_hub_id(argument) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c", "HOME": "/h"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c", "HOME": "/h"}, "/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/huggingface/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_hugging_face_has_it(variables: dict[str, str], expected: str) -> None:
    assert cache_root(variables) == Path(expected)


def test_a_hub_id_in_the_cache_is_deployed_without_a_network_and_its_commit_is_pinned(hub_cache: Path) -> None:
    source = resolve("org/small", download=False)
    assert (source.hub_id, source.commit, source.name) == ("org/small", COMMIT, "small")
    description = describe("org/small", device="twin", download=False)
    assert (description.name, description.hub_id, description.revision) == ("small", "org/small", COMMIT)
    assert {"model/config.json", "model/model.safetensors"} <= set(description.inputs)


def test_a_snapshot_and_a_repository_folder_are_directories_that_know_their_commit(hub_cache: Path) -> None:
    folder = hub_cache / "models--org--small"
    for spelling in (folder, folder / "snapshots" / COMMIT):
        source = resolve(str(spelling))
        assert (source.hub_id, source.commit, source.name) == ("org/small", COMMIT, "small")


def test_a_revision_is_a_branch_or_a_commit_and_another_one_is_not_taken_for_it(hub_cache: Path, plain: Path) -> None:
    lay_snapshot(hub_cache, plain, OLDER)
    (hub_cache / "models--org--small" / "refs" / "main").write_text(COMMIT)
    assert cached(HubId("org/small")).commit == COMMIT
    assert cached(HubId("org/small", OLDER)).commit == OLDER
    assert cached(HubId("org/small", "v2")) is None
    with pytest.raises(Refusal, match=r"org/small@v2 is not in the local"):
        resolve("org/small@v2", download=False)


@pytest.mark.parametrize("gone", ["model.safetensors", "config.json"])
def test_a_snapshot_whose_download_was_stopped_is_not_taken_for_a_model(gone: str, hub_cache: Path) -> None:
    link = hub_cache / "models--org--small" / "snapshots" / COMMIT / gone
    link.resolve().unlink()  # the link now leads nowhere
    assert cached(HubId("org/small")) is None
    with pytest.raises(Refusal, match=r"not in the local Hugging Face cache.*Next: scripts/deploy\.py org/small"):
        resolve("org/small", download=False)
    with pytest.raises(Refusal, match="no whole snapshot of main"):
        resolve(str(hub_cache / "models--org--small"))


def test_a_mistyped_path_below_a_directory_that_is_there_is_not_looked_up_on_the_hub(
    plain: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        Refusal, match=r"no directory 'checkpoints/lama' \(checkpoints holds llama\).*hf://checkpoints/lama"
    ):
        resolve("checkpoints/lama")


def spoil(plain: Path, tmp_path: Path, *, add: str, remove_weights: bool = True) -> Path:
    model = Path(shutil.copytree(plain, tmp_path / "it's mine"))
    (model / add).write_text("{}")
    if remove_weights:
        (model / "model.safetensors").unlink()
    return model


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ("adapter_config.json", ("LoRA adapter", "merge_and_unload", "peft")),
        ("pytorch_model.bin", (".bin weights only", "save_pretrained", "AutoModelForCausalLM")),
        ("model-q4.gguf", ("GGUF weights only", "gguf_file=", "model-q4.gguf")),
    ],
)
def test_another_format_is_refused_with_a_command_that_a_shell_can_take(
    added: str, words: tuple[str, ...], plain: Path, tmp_path: Path
) -> None:
    model = spoil(plain, tmp_path, add=added)
    with pytest.raises(Refusal) as caught:
        resolve(str(model))
    for word in words:
        assert word in str(caught.value)
    import shlex

    python, _, code, *rest = shlex.split(caught.value.next_step)
    assert python == "python"
    compile(code, "converting command", "exec")
    assert str(model) in code.replace("\\'", "'")
    assert rest[:2] == ["&&", "scripts/deploy.py"]


def test_weights_in_two_formats_are_no_reason_to_refuse(plain: Path, tmp_path: Path) -> None:
    model = spoil(plain, tmp_path, add="pytorch_model.bin", remove_weights=False)
    assert resolve(str(model)).directory == model.resolve()


def test_a_gguf_file_is_refused_with_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "some model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(Refusal, match=r"is a file.*gguf_file="):
        resolve(str(file))
