# SPDX-License-Identifier: Apache-2.0
"""The client, a clone of the repository in a path with spaces, and homes that are empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin_check.client import Client, clone, installed_client


@pytest.fixture(scope="session")
def program() -> Path:
    return installed_client()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone that no check changes."""
    return clone(tmp_path_factory.mktemp("a clone") / "llm to npu")


@pytest.fixture
def client(program: Path, tmp_path: Path) -> Client:
    """The client in an empty home."""
    home = tmp_path / "home"
    home.mkdir()
    return Client(program, home)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A person's own project, which is not the repository."""
    folder = tmp_path / "my project"
    folder.mkdir()
    return folder
