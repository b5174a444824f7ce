# SPDX-License-Identifier: Apache-2.0
"""The lint's self-test: a sound skill passes, and every fault that is planted in it is caught by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from refusal import Refusal
from tests.skills.lint import RULES, lint

SOUND = """---
name: debug-sound
description: "Use when a result is wrong and nobody knows why, or a next line says skill debug-sound."
---

# A sound skill

## Before you start

- Read [references/more.md](references/more.md), and see the skill `debug-sound`, `judge/` and `--name`.

## Steps

1. Judge:

   ```bash
   python3 "${CLAUDE_PLUGIN_ROOT}/scripts/gate.py" --phase 1 --name NAME
   ```

   ```text
   phase 1: FAILED
   next: scripts/gate.py --phase 1
   ```

## Gate

`gate.py` exits 0.

## If it fails

- Again.

## Ask a human when

- Never.

## Excuses

| excuse | why it does not hold |
|---|---|
| "It is late." | It is. |
| "It is right." | It is not. |
"""


class Parser(argparse.ArgumentParser):
    """A parser like those of the verbs: a wrong argument is a refusal."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise Refusal(message)


def verbs() -> dict[str, argparse.ArgumentParser]:
    gate = Parser(prog="gate")
    gate.add_argument("--phase", type=int, choices=[0, 1])
    gate.add_argument("--name")
    return {"gate": gate}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack with one sound skill."""
    folder = tmp_path / "skills" / "debug-sound"
    (folder / "references").mkdir(parents=True)
    (tmp_path / "judge").mkdir()
    (folder / "SKILL.md").write_text(SOUND)
    (folder / "references" / "more.md").write_text("# More\n\nSee `judge/`.\n")
    return tmp_path


def problems(pack: Path) -> list[str]:
    return lint(pack / "skills", pack, verbs()).problems


def test_the_sound_skill_passes_and_every_rule_looked_at_it(pack: Path) -> None:
    report = lint(pack / "skills", pack, verbs())
    assert report.problems == []
    assert min(report.looked_at.values()) > 0


def replaced(old: str, new: str) -> Callable[[Path], None]:
    """A fault that puts `new` in place of `old` in the skill."""

    def plant(folder: Path) -> None:
        text = (folder / "SKILL.md").read_text()
        assert old in text
        (folder / "SKILL.md").write_text(text.replace(old, new))

    return plant


def reference(name: str, text: str) -> Callable[[Path], None]:
    """A fault that adds or changes a reference file."""
    return lambda folder: (folder / "references" / name).write_text(text) and None


# fault -> (how it is planted, words of the problem that names it)
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unquoted colon": (replaced('"Use when a result', "Use when: a result"), "front matter is not YAML"),
    "no quotes": (
        replaced('"Use when a result is wrong and nobody knows why, or a next line says skill debug-sound."',
                 "Use when a result is wrong and nobody knows why, or a next line says so."),
        "double quotes",
    ),
    "a key given twice": (replaced("name: debug-sound\n", "name: debug-sound\nname: other\n"), "given twice"),
    "another name": (replaced("name: debug-sound\n", "name: debug-other\n"), "is not the folder's"),
    "a field that asks for permission": (replaced("name: debug-sound\n", "name: debug-sound\nallowed-tools: Bash\n"),
                                         "allowed-tools"),
    "no front matter": (replaced("---\nname", "name"), "no front matter"),
    "no SKILL.md": (lambda folder: (folder / "SKILL.md").rename(folder / "skill.md"), "no SKILL.md"),
    "a description of the contents": (replaced("Use when a result is", "Debugs results that are"), "Use when"),
    "a description too long": (replaced("nobody knows why", "nobody knows why " * 30), "characters"),
    "a body too long": (replaced("- Again.", "- Again.\n" * 200), "lines, at most"),
    "a body with too many tokens": (replaced("- Again.", "- " + "Again. " * 2000), "tokens, at most"),
    "a section missing": (replaced("## Ask a human when\n\n- Never.\n\n", ""), "sections are"),
    "no excuses": (replaced('| "It is late." | It is. |\n| "It is right." | It is not. |\n', ""), "excuses"),
    "a verb that does not exist": (replaced("scripts/gate.py\" --phase", "scripts/judge.py\" --phase"), "no verb judge"),
    "a flag that does not exist": (replaced("--phase 1 --name NAME", "--phase 1 --stage two"), "--stage"),
    "a phase that does not exist": (replaced("--phase 1 --name", "--phase 4 --name"), "invalid choice"),
    "an unquoted root": (replaced('"${CLAUDE_PLUGIN_ROOT}/scripts/gate.py"', "${CLAUDE_PLUGIN_ROOT}/scripts/gate.py"),
                         "is not python3"),
    "a command that is none of ours": (replaced("   ```bash\n", "   ```bash\n   rm -r deployments\n"), "is not python3"),
    "no command": (replaced("```bash", "```sh"), "no command before the gate"),
    "a gate of opinion": (replaced("`gate.py` exits 0.", "It looks right."), "no script that decides"),
    "a next line that nothing prints": (replaced("next: scripts/gate.py --phase 1", "next: scripts/gate.py --stage"),
                                        "--stage"),
    "a next line to no skill": (replaced("next: scripts/gate.py --phase 1", "next: skill debug-none"), "names no skill"),
    "a skill that does not exist": (replaced("skill `debug-sound`", "skill `debug-none`"), "no skill debug-none"),
    "a flag in prose that does not exist": (replaced("`--name`", "`--nome`"), "no verb has the flag --nome"),
    "a file that does not exist": (replaced("`judge/`", "`judge/oracle.py`"), "no file judge/oracle.py"),
    "a dead link": (replaced("(references/more.md)", "(references/less.md)"), "references/less.md"),
    "a link out of the skill": (replaced("(references/more.md)", "(../other/SKILL.md)"), "../other/SKILL.md"),
    "a reference that nothing links to": (reference("lost.md", "# Lost\n"), "linked from nowhere"),
    "a reference that links on": (reference("more.md", "[on](deeper.md) `judge/`\n"), "links on"),
    "a typed-in threshold": (replaced("- Again.", "- Again, until it is below 0.01."), "0.01"),
    "a threshold in code": (replaced("- Again.", "- Again, until `rel < 2e-3`."), "2e-3"),
    "a typed-in count": (replaced("- Again.", "- Again, for 64 positions."), "64"),
    "a number in a reference": (reference("more.md", "At most 0.5 of `judge/`.\n"), "0.5"),
    "another variable": (replaced("- Again.", "- See ${CLAUDE_SKILL_DIR}."), "CLAUDE_SKILL_DIR"),
    "a variable in a reference": (reference("more.md", "${CLAUDE_PLUGIN_ROOT} `judge/`\n"), "not substituted there"),
    "a path of a machine": (replaced("- Again.", "- See /home/me/pack."), "absolute path"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, pack: Path) -> None:
    plant, words = FAULTS[fault]
    plant(pack / "skills" / "debug-sound")
    found = problems(pack)
    assert any(words in problem for problem in found), found


def test_an_empty_folder_is_a_problem_of_every_rule(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    found = problems(tmp_path)
    assert len([problem for problem in found if "looked at nothing" in problem]) == len(RULES)


def test_descriptions_have_a_budget_together(pack: Path) -> None:
    for index in range(40):
        folder = pack / "skills" / f"debug-more-{index}"
        folder.mkdir()
        text = SOUND.replace("debug-sound", folder.name).replace("why,", "why " + "so " * 60 + ",")
        (folder / "SKILL.md").write_text(text)
    assert any("all descriptions together" in problem for problem in problems(pack))
