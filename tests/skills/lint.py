# SPDX-License-Identifier: Apache-2.0
"""The pack's own lint for skills. Each rule is a function from a skill to problems; each counts what it looked at.

A rule that looked at nothing in the whole pack is itself a problem: it has stopped working, or what it guards is gone.
The rules, and why: how skills went silently missing in public (front matter that is not YAML), drifted from the scripts
they name (flags, files), or grew numbers that a script prints and a gate has long changed.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT_VARIABLE = "${CLAUDE_PLUGIN_ROOT}"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
HEADINGS = ("Before you start", "Steps", "Gate", "If it fails", "Ask a human when", "Excuses")
# Budgets: a skill's text is paid for each time it is used, all descriptions in every session.
MAX_LINES, MAX_TOKENS, MAX_DESCRIPTION, MAX_ALL_DESCRIPTIONS, MIN_DESCRIPTION = 200, 2000, 320, 8000, 60
CHARACTERS_A_TOKEN = 4
# Files of a deployment, written at run time: named in skills, not part of the pack.
WRITTEN = ("deployments/", "rmsnorm.mlir", "gemm.mlir", "attention.mlir")
FILE_SUFFIXES = (".md", ".py", ".toml", ".cc", ".hpp", ".txt")
RUN_TIME_FILES = {"plan.md", "issues.md", "perf_opt_traj.md"}


class _StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.YAMLError(f"a key is given twice: {keys}")
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Skill:
    """One skill folder: front matter as text and as values, the body, and its reference files by name."""

    folder: Path
    header: str
    front: dict[str, object]
    body: str
    references: dict[str, str]

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass
class Surroundings:
    """What skills may name: the pack's folder, the verbs' parsers, the names of all skills."""

    pack: Path
    verbs: Mapping[str, argparse.ArgumentParser]
    names: frozenset[str]


@dataclass
class Report:
    """Problems, and how many things each rule looked at."""

    problems: list[str] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)


def read_skill(folder: Path) -> Skill:
    """Read a skill folder.

    Raises:
        ValueError: no SKILL.md, or front matter that is not strict YAML.
    """
    path = folder / "SKILL.md"
    if not path.is_file():
        raise ValueError(f"{folder.name}: no SKILL.md")
    parts = path.read_text().split("---\n", 2)
    if len(parts) != 3 or parts[0]:
        raise ValueError(f"{folder.name}: no front matter between two lines of ---")
    try:
        front = yaml.load(parts[1], _StrictLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{folder.name}: front matter is not YAML: {error}") from None
    if not isinstance(front, dict):
        raise ValueError(f"{folder.name}: front matter is no mapping")
    references = {file.name: file.read_text() for file in sorted(folder.glob("references/*"))}
    return Skill(folder, parts[1], front, parts[2], references)


def lint(skills_folder: Path, pack: Path, verbs: Mapping[str, argparse.ArgumentParser]) -> Report:
    """Hold every skill of a folder against every rule."""
    report = Report()
    folders = sorted(path for path in skills_folder.iterdir() if path.is_dir())
    skills = []
    for folder in folders:
        try:
            skills.append(read_skill(folder))
        except ValueError as problem:
            report.problems.append(str(problem))
    around = Surroundings(pack, verbs, frozenset(folder.name for folder in folders))
    for rule in RULES:
        counted = 0
        for skill in skills:
            for problem in rule(skill, around):
                counted += 1
                if problem:
                    report.problems.append(f"{skill.name}: {problem}")
        report.looked_at[rule.__name__] = counted
        if counted == 0:
            report.problems.append(f"rule {rule.__name__} looked at nothing")
    listing = sum(len(str(skill.front.get("description", ""))) for skill in skills)
    if listing > MAX_ALL_DESCRIPTIONS:
        report.problems.append(f"all descriptions together have {listing} characters, at most {MAX_ALL_DESCRIPTIONS}")
    return report


# A rule yields one item for each thing that it looked at: "" if it is in order, else what is wrong.
Found = Iterator[str]


def front_matter(skill: Skill, around: Surroundings) -> Found:
    """Only name and description, the name that of the folder, the description quoted."""
    unknown = sorted(set(skill.front) ^ {"name", "description"})
    yield f"front matter has or lacks {unknown}; it is name and description alone" if unknown else ""
    name = skill.front.get("name")
    right = name == skill.name and NAME.fullmatch(str(name)) and len(str(name)) <= 64
    yield "" if right else f"name {name!r} is not the folder's, or not lower case with hyphens"
    yield "" if re.search(r'^description: ".*"$', skill.header, re.M) else "the description is not in double quotes"


def description(skill: Skill, around: Surroundings) -> Found:
    """When to use it, and nothing else, within the budget."""
    text = str(skill.front.get("description", ""))
    yield "" if text.startswith("Use when ") else "the description does not begin with 'Use when'"
    fits = MIN_DESCRIPTION <= len(text) <= MAX_DESCRIPTION
    yield "" if fits else f"the description has {len(text)} characters, {MIN_DESCRIPTION} to {MAX_DESCRIPTION} fit"


def budget(skill: Skill, around: Surroundings) -> Found:
    """Lines and tokens of the body, and of each reference."""
    for label, text in (("body", skill.body), *skill.references.items()):
        lines, tokens = text.count("\n"), len(text) // CHARACTERS_A_TOKEN
        yield f"{label} has {lines} lines, at most {MAX_LINES}" if lines > MAX_LINES else ""
        yield f"{label} has about {tokens} tokens, at most {MAX_TOKENS}" if tokens > MAX_TOKENS else ""


def headings(skill: Skill, around: Surroundings) -> Found:
    """The same six sections, in the same order."""
    found = tuple(re.findall(r"^## (.+)$", skill.body, re.M))
    yield "" if found == HEADINGS else f"sections are {found}, expected {HEADINGS}"
    excuses = skill.body.split("## Excuses")[-1]
    yield "" if excuses.count("\n|") >= 4 else "fewer than two excuses are answered"


def commands(skill: Skill, around: Surroundings) -> Found:
    """Every command block runs verbs of the pack, from its quoted root, with arguments that the verb accepts."""
    for block in re.findall(r"```bash\n(.*?)```", skill.body, re.S):
        for line in filter(None, map(str.strip, block.splitlines())):
            yield _command(line, around)


def _command(line: str, around: Surroundings) -> str:
    found = re.fullmatch(rf'python3 "{re.escape(ROOT_VARIABLE)}/scripts/(\w+)\.py"(.*)', line)
    if not found:
        return f'{line!r} is not python3 "{ROOT_VARIABLE}/scripts/VERB.py" ...'
    return _accepted(found[1], found[2], around)


def _accepted(verb: str, arguments: str, around: Surroundings) -> str:
    """ "" if the verb exists and its parser takes the arguments."""
    if verb not in around.verbs:
        return f"there is no verb {verb}"
    try:
        around.verbs[verb].parse_args(shlex.split(arguments))
    except Exception as error:  # the verbs' parsers raise refusals
        return f"{verb}{arguments}: {error}"
    return ""


def has_command(skill: Skill, around: Surroundings) -> Found:
    """A skill without a command leads nowhere; a gate without one is a matter of opinion."""
    yield "" if "```bash" in skill.body.split("## Gate")[0] else "no command before the gate"
    gate = skill.body.split("## Gate")[-1].split("## If it fails")[0]
    yield "" if ".py" in gate or "exits" in gate else "the gate names no script that decides"


def expected_output(skill: Skill, around: Surroundings) -> Found:
    """A `next:` line in expected output is one that a verb can print: a verb with its arguments, or a skill."""
    for block in re.findall(r"```text\n(.*?)```", skill.body, re.S):
        for text in re.findall(r"^\s*next: (.+)$", block, re.M):
            yield _next_line(text, around)


def _next_line(text: str, around: Surroundings) -> str:
    if text == "...":
        return ""
    if text.startswith("skill "):
        return "" if text.removeprefix("skill ") in around.names else f"next: names no skill: {text}"
    found = re.fullmatch(r"scripts/(\w+)\.py( .*?)?(?:  # skill ([a-z0-9-]+))?", text)
    if not found:
        return f"next: {text} is neither a verb nor a skill"
    if found[3] and found[3] not in around.names:
        return f"next: names no skill: {found[3]}"
    return _accepted(found[1], (found[2] or "").replace("...", "90"), around)


def mentions(skill: Skill, around: Surroundings) -> Found:
    """Inline code that looks like a skill, a flag, a verb or a file of the pack is one."""
    every_flag = {option for parser in around.verbs.values() for option in _flags(parser)}
    for text in (skill.body, *skill.references.values()):
        for word in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S)):
            yield from _mention(word, around, every_flag)


def _mention(word: str, around: Surroundings, every_flag: set[str]) -> Found:
    first = word.split()[0]
    if re.fullmatch(r"(phase|debug|optimize|add)-[a-z0-9-]+|deploy-llm", word):
        yield "" if word in around.names else f"there is no skill {word}"
    for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", word):
        yield "" if flag in every_flag else f"no verb has the flag {flag}"
    if found := re.fullmatch(r"(?:scripts/)?(\w+)\.py", first):
        known = found[1] in around.verbs or found[1] == "VERB"
        yield "" if known else f"there is no verb {found[1]}"
    elif _names_a_file(word):
        yield "" if (around.pack / word).exists() else f"there is no file {word} in the pack"


def _names_a_file(word: str) -> bool:
    if " " in word or word.startswith(("--", "~", "$")) or word.startswith(WRITTEN) or word in RUN_TIME_FILES:
        return False
    return "/" in word and (word.endswith("/") or word.endswith(FILE_SUFFIXES))


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def links(skill: Skill, around: Surroundings) -> Found:
    """Every link resolves, references lie one level down, and every reference is linked to."""
    targets = re.findall(r"\]\(([^)\s]+)\)", skill.body)
    for target in targets:
        inside = re.fullmatch(r"references/[\w-]+\.md", target)
        there = inside and (skill.folder / target).is_file()
        yield "" if there else f"link {target} does not lead to references/NAME.md"
    for name, text in skill.references.items():
        yield "" if f"references/{name}" in targets else f"references/{name} is linked from nowhere"
        yield f"references/{name} links on; one level is enough" if "](" in text else ""


def typed_in_numbers(skill: Skill, around: Surroundings) -> Found:
    """No threshold or count that a script prints: no fraction anywhere, no number of two digits in prose."""
    for label, text in (("body", skill.body), *skill.references.items()):
        fractions = re.findall(r"(?<![\w.])\d+(?:\.\d+|(?:\.\d+)?e-?\d+)(?!\w)", text)
        yield f"{label} holds the numbers {fractions}: a script prints them" if fractions else ""
        prose = re.sub(r"`[^`\n]+`", "", re.sub(r"```.*?```", "", text, flags=re.S))
        counts = re.findall(r"(?<![\w-])\d{2,}(?!\w)", prose)
        yield f"{label} holds the numbers {counts} in prose" if counts else ""


def variables(skill: Skill, around: Surroundings) -> Found:
    """The root variable is substituted in bodies alone; nothing else is, and nothing else may appear."""
    for found in re.findall(r"\$\{[^}]*\}|\$[A-Z_]+|\$ARGUMENTS|(?<!\w)\$\d", skill.body):
        yield "" if found == ROOT_VARIABLE else f"variable {found} is not substituted in skill bodies"
    for name, text in skill.references.items():
        yield f"references/{name} uses a variable that is not substituted there" if "${" in text else ""
    yield (
        "an absolute path of some machine" if re.search(r"(?<![\w}.])/(home|root|work|Users|tmp)/", skill.body) else ""
    )


RULES: tuple[Callable[[Skill, Surroundings], Found], ...] = (
    front_matter, description, budget, headings, commands, has_command, expected_output, mentions, links,
    typed_in_numbers, variables,
)  # fmt: skip
