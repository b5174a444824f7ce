# SPDX-License-Identifier: Apache-2.0
"""Downloads from a hub on 127.0.0.1: what is fetched, resumed, held against its hash, and refused with its own words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from judge.fixture import write_fixture
from tests.pipeline.fake_hub import COMMIT, FakeHub, serving
from tests.scripts.run_verb import Ended, verb

WEIGHTS = "model.safetensors"
pytestmark = pytest.mark.slow  # each case is a verb, or two, in processes of their own


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, an empty Hugging Face cache, and no settings of the machine's own."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LLM_TO_NPU_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "my work"
    work.mkdir()
    return work


@pytest.fixture
def hub(tmp_path: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    folder = write_fixture(tmp_path / "remote")
    (folder / "README.md").write_text("a model card")
    (folder / "consolidated.safetensors").write_bytes(b"x" * 20_000)
    with serving(FakeHub("org/small", folder)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def fetch(desk: Path, model: str = "org/small") -> Ended:
    """Download through the library's own door, in a process of its own, and stop before the deployment."""
    return verb("deploy", model, "--layers", "99", cwd=desk)


def test_a_hub_id_is_downloaded_once_at_a_pinned_commit_and_only_what_a_deployment_reads(
    hub: FakeHub, desk: Path, tmp_path: Path
) -> None:
    ended = fetch(desk)
    assert "commit c0ffee" in ended.out
    assert "--layers 99" in ended.err  # the model was found and read, and the deployment refused for its own reason
    snapshot = tmp_path / "hf" / "hub" / "models--org--small" / "snapshots" / COMMIT
    assert {path.name for path in snapshot.iterdir()} == {"config.json", "provenance.json", WEIGHTS}
    assert (snapshot / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()
    assert (snapshot.parent.parent / "refs" / "main").read_text() == COMMIT
    before = len(hub.served)
    assert "--layers 99" in fetch(desk).err
    assert len(hub.served) == before  # the second time nothing was asked


def test_a_download_that_broke_off_goes_on_where_it_stopped(hub: FakeHub, desk: Path) -> None:
    large, cut = "LICENSE.txt", 15_000_000  # the library keeps whole chunks of 10 MB
    (hub.folder / large).write_bytes(bytes(range(256)) * 90_000)
    hub.stop_after = cut
    ended = fetch(desk)
    if "--layers 99" not in ended.err:  # the library gave up instead of trying again: the next call goes on
        assert ended.next.startswith("scripts/deploy.py org/small")
        ended = fetch(desk)
    assert "--layers 99" in ended.err
    starts = [first for name, first in hub.served if name == large]
    assert len(starts) == 2
    assert 0 < starts[1] <= cut


def test_a_file_with_other_bytes_is_refused_and_not_kept(hub: FakeHub, desk: Path) -> None:
    hub.corrupt.add(WEIGHTS)
    refusal = fetch(desk).err
    assert f"{WEIGHTS} has SHA-256" in refusal
    hub.corrupt.clear()
    assert "--layers 99" in fetch(desk).err


@pytest.mark.parametrize(
    ("state", "argument", "words", "next_step"),
    [
        ("gated", "org/small", ("org/small is gated", "licence"), "hf auth login && scripts/deploy.py org/small"),
        ("private", "org/small", ("no model 'org/small', or a private one",), "correct the name"),
        ("open", "org/smell", ("no model 'org/smell'",), "correct the name"),
        ("open", "org/small@v9", ("no revision 'v9'",), "scripts/deploy.py org/small"),
    ],
)
def test_what_the_hub_refuses_has_its_own_message_and_its_own_next_step(
    state: str, argument: str, words: tuple[str, ...], next_step: str, hub: FakeHub, desk: Path
) -> None:
    hub.state = state
    ended = verb("deploy", argument, cwd=desk)
    assert ended.code == 2
    for word in words:
        assert word in ended.err
    assert next_step in ended.next
    assert not (desk / "deployments").exists()


def test_offline_is_said_as_such(hub: FakeHub, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refusal = verb("deploy", "org/small", cwd=desk).refusal
    assert "cannot be reached" in refusal
    assert "when online" in refusal


def test_an_endpoint_where_nobody_listens_is_offline_too(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused at once
    assert "cannot be reached" in verb("deploy", "org/small", cwd=desk).refusal


@pytest.mark.parametrize(
    ("name", "word"), [("adapter_config.json", "LoRA"), ("pytorch_model.bin", ".bin"), ("small.gguf", "GGUF")]
)
def test_another_format_is_refused_before_a_byte_is_fetched(name: str, word: str, hub: FakeHub, desk: Path) -> None:
    for path in hub.folder.glob("*.safetensors"):
        path.unlink()
    (hub.folder / name).write_bytes(b"{}")
    assert word in verb("deploy", "org/small", cwd=desk).refusal
    assert not hub.served


def test_a_model_larger_than_the_disk_is_refused_before_a_byte_is_fetched(tmp_path: Path) -> None:
    from pipeline.hub_download import Plan, RemoteFile, require_disk
    from refusal import Refusal

    free = shutil.disk_usage(tmp_path).free
    plan = Plan("org/huge", "main", COMMIT, str(tmp_path / "none" / "yet"), (RemoteFile(WEIGHTS, free),))
    with pytest.raises(Refusal, match=r"MiB of disk free.*org/huge.*HF_HOME"):
        require_disk(plan)
