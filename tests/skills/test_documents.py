# SPDX-License-Identifier: Apache-2.0
"""README, AGENTS and the living documents: every command, file, skill and make target that they name is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from pipeline.conduct import PHASES, SKILLS
from tests.skills.verbs import PACK, flags, parsers

DOCUMENTS = ("README.md", "AGENTS.md", "plan.md", "issues.md", "perf_opt_traj.md")
WRITTEN_AT_RUN_TIME = ("deployments/", "models/", "/npu:", ".venv")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.S)


def missing_files(text: str, folder: Path) -> list[str]:
    """Inline code and links that look like a path of the repository and lead nowhere."""
    named = re.findall(r"`([\w./-]+/[\w./-]*)`", prose(text)) + re.findall(r"\]\(([^)#:]+)\)", text)
    named = [path for path in named if not path.startswith(WRITTEN_AT_RUN_TIME) and "VERB" not in path]
    return [path for path in named if not (folder / path).exists()]


def wrong_commands(text: str) -> list[str]:
    """Lines of bash blocks that name a verb with arguments it refuses, or a make target that is not there."""
    targets = set(re.findall(r"^([a-z-]+):", (PACK / "Makefile").read_text(), re.M))
    wrong = []
    for line in filter(None, "\n".join(blocks(text, "bash")).splitlines()):
        words = shlex.split(line)
        if words[0] == "make":
            wrong += [line] if not set(words[1:]) <= targets else []
        elif found := re.fullmatch(r"scripts/(\w+)\.py", words[0]):
            try:
                parsers()[found[1]].parse_args(words[1:])
            except Exception as error:  # the verbs' parsers raise refusals
                wrong.append(f"{line}: {error}")
        elif words[0] not in ("sudo", "claude"):
            wrong.append(f"{line}: what is this?")
    return wrong


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_and_links_lead_somewhere(name: str) -> None:
    assert missing_files((PACK / name).read_text(), PACK) == []


@pytest.mark.parametrize("name", ("README.md", "AGENTS.md"))
def test_commands_are_accepted_by_what_they_call(name: str) -> None:
    text = (PACK / name).read_text()
    assert blocks(text, "bash")
    assert wrong_commands(text) == []


def test_the_checks_notice_what_is_wrong(tmp_path: Path) -> None:
    assert missing_files("see `judge/oracle.py` and [that](nowhere.md)", PACK) == ["judge/oracle.py", "nowhere.md"]
    for bad in ("make cake", "scripts/deploy.py --stage 1", "rm -r deployments"):
        assert wrong_commands(f"```bash\n{bad}\n```\n"), bad


def test_every_verb_is_in_the_table_of_agents_and_the_other_way_round() -> None:
    table = (PACK / "AGENTS.md").read_text().split("## Verbs")[1].split("## The last line")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(parsers())
    known = {flag for parser in parsers().values() for flag in flags(parser)}
    assert set(re.findall(r"`(--[a-z-]+)", table)) <= known


def test_every_phase_is_in_the_table_of_agents_with_its_skill() -> None:
    rows = re.findall(r"^\| (\d) \| ([\w ]+) \| `([\w-]+)` \|$", (PACK / "AGENTS.md").read_text(), re.M)
    assert {int(number): (title, skill) for number, title, skill in rows} == {
        phase: (title, SKILLS[phase]) for phase, (title, _) in PHASES.items()
    }


@pytest.mark.parametrize("name", ("README.md", "AGENTS.md"))
def test_every_skill_that_is_named_exists_and_every_skill_is_named(name: str) -> None:
    there = {path.parent.name for path in PACK.glob("skills/*/SKILL.md")}
    text = (PACK / name).read_text()
    named = set(re.findall(r"`(?:/npu:)?((?:phase|debug|optimize|add)-[a-z0-9-]+|deploy-llm)`", text))
    assert named == there


def test_the_readme_says_what_was_not_measured_and_lists_every_hook() -> None:
    text = (PACK / "README.md").read_text()
    assert "**nothing**: there was no NPU" in text
    hooks = json.loads((PACK / "hooks" / "hooks.json").read_text())["hooks"]
    rows = [line for line in text.splitlines() if line.startswith("| `hooks/")]
    assert len(rows) == sum(len(group["hooks"]) for groups in hooks.values() for group in groups)
    for event, groups in hooks.items():
        for group in groups:
            tools = group.get("matcher", "").split("|")
            assert [row for row in rows if event in row and all(tool in row for tool in tools)]


def test_no_document_holds_a_path_of_some_machine_or_the_host_of_a_registry() -> None:
    pattern = re.compile(r"(?<![\w.])/(home|root|work|Users|opt|tmp)/|https?://")
    texts = {name: (PACK / name).read_text() for name in DOCUMENTS}
    assert {name: found for name, text in texts.items() if (found := pattern.findall(text))} == {}


def test_claude_md_is_a_link_to_agents_md() -> None:
    assert (PACK / "CLAUDE.md").is_symlink()
    assert (PACK / "CLAUDE.md").readlink() == Path("AGENTS.md")


def test_links_are_committed_as_links() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", "CLAUDE.md", ".claude/skills/npu"],
        cwd=PACK,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    if not (PACK / ".git").exists():
        pytest.skip("not a git checkout: an installed copy has no index")
    assert [line.split()[0] for line in listed] == ["120000", "120000"]
