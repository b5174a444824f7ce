# SPDX-License-Identifier: Apache-2.0
"""The prompts are held fixed: a change must be meant, and is made here too."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge.prompts import PROMPTS_PATH, load_prompts
from refusal import Refusal

SHA256 = "72e20f88de58f9cbe8408a87bb99b8b391ffea3a4d6e37190909204ea1035fc3"


def test_the_prompts_are_those_that_claims_were_made_with():
    prompts = load_prompts()
    assert prompts.sha256 == SHA256
    assert len(prompts.greedy) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "bread"', 'name = "lighthouse"', "same name"),
        ("What is the capital of France?", " ", "without name or text"),
        ("[[greedy]]\nname = \"bread\"", "[[chat]]\nname = \"bread\"", "2 greedy"),
        ("[[chat]]", "[[chats]]", "not a list of prompts"),
    ],
)  # fmt: skip
def test_a_list_that_proves_less_is_refused(tmp_path: Path, old: str, new: str, message: str):
    changed = tmp_path / "prompts.toml"
    changed.write_text(PROMPTS_PATH.read_text().replace(old, new))
    with pytest.raises(Refusal, match=message):
        load_prompts(changed)
