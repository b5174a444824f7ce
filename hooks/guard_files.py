# SPDX-License-Identifier: Apache-2.0
"""PreToolUse: while a deployment is under way, nobody edits what judges it or what it recorded. Standard library only.

Protected are judge/, reference/, hooks/ and manifest.json of the pack, and the records of each deployment under way:
evidence.jsonl, deployment.json, state.json, the marker and the evaluation's verdict. Prose in the living documents is free.

Write, Edit and NotebookEdit are judged by their path, links resolved. Bash is judged as well as its text allows: targets
of redirections, operands of commands that write, and inline programs that name a protected file and write. That is a
help against accidents; the protection is `evaluate`, which recomputes every hash from a copy made by the manifest.

Exit 0: go on. Exit 2: denied, with the reason. hooks.json turns any other end into 2.
"""

import json
import os
import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from markers import describe, how_to_end, project, under_way

PACK = Path(__file__).resolve().parent.parent
PACK_PARTS = ("judge", "reference", "hooks", "manifest.json")
RECORDS = ("evidence.jsonl", "deployment.json", "state.json", "UNDER_WAY", "evaluation.json", "evaluation_report.md")
# Every operand of these is written, moved or removed; of the copying ones only the last is.
WRITERS = {"rm", "mv", "tee", "truncate", "touch", "shred", "unlink", "chmod", "patch", "ed", "rmdir"}
COPIERS = {"cp", "install", "ln", "rsync", "scp"}
IN_PLACE = {
    "sed": re.compile(r"^-[a-zA-Z]*i|^--in-place"),
    "perl": re.compile(r"^-[a-zA-Z]*i"),
    "ruff": re.compile(r"^format$|^--fix$"),
}
GIT_WRITERS = {"checkout", "restore", "reset", "apply", "am", "stash", "clean", "rm", "mv", "revert"}
INTERPRETERS = re.compile(r"^(python[0-9.]*|perl|ruby|node|bash|sh|dash|zsh)$")
WRITES_IN_CODE = re.compile(
    r"""open\([^)]*,\s*['"][^'"]*[wax+]|write_text|write_bytes|\.write\(|unlink|rename|replace\(|remove\(|rmtree|copy|>|sed -i|truncate"""
)
SEPARATORS = {";", "&", "&&", "||", "|", "|&", "(", ")", "{", "}", "\n", "then", "do", "else"}
PREFIXES = {"sudo", "env", "nice", "time", "nohup", "command", "exec", "xargs", "builtin"}


def main() -> int:
    """Read the event, decide, answer."""
    event = json.load(sys.stdin)
    markers = under_way(project(event))
    if not markers:
        return 0
    tool, given = event["tool_name"], event["tool_input"]
    folder = Path(event.get("cwd") or project(event))
    guard = Guard(markers)
    if tool == "Bash":
        found = guard.written_by(given["command"], folder)
    else:
        found = guard.protects(folder / (given.get("file_path") or given["notebook_path"]))
    if not found:
        return 0
    print(refusal(found, tool, markers), file=sys.stderr)
    return 2


def refusal(path: Path, tool: str, markers: list) -> str:
    """What was found, what was expected, and what to do next."""
    lines = [f"denied: {tool} would change {path}, which a deployment under way is judged by or has recorded."]
    for marker in markers:
        lines.append(f"  {describe(marker)}; to end it without a proof: {how_to_end(marker)}")
    lines.append(
        "Change the plan, the kernels or the notes instead; a wrong gate or oracle is a question to a human: scripts/ask.py QUESTION"
    )
    return "\n".join(lines)


class Guard:
    """What is protected while the given markers stand."""

    def __init__(self, markers: list) -> None:
        self.trees = [Path(os.path.realpath(PACK / part)) for part in PACK_PARTS]
        self.trees += [Path(os.path.realpath(marker.parent)) / name for marker in markers for name in RECORDS]
        # Removing or moving a folder takes along what is in it.
        self.holders = {parent for tree in self.trees for parent in tree.parents}

    def protects(self, path: Path, whole: bool = False) -> "Path | None":
        """The protected path that writing `path` changes, if any. whole: the path is moved or removed with its content."""
        real = Path(os.path.realpath(path.expanduser()))
        if any(real == tree or tree in real.parents for tree in self.trees):
            return real
        return real if whole and real in self.holders else None

    def written_by(self, command: str, folder: Path) -> "Path | None":
        """A protected path that a shell command would write, as far as its text tells."""
        try:
            lexer = shlex.shlex(command.replace("\n", " ; "), posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, ""
            tokens = list(lexer)
        except ValueError:  # unbalanced quotes, a heredoc: fall back to the text
            return self._named_in(command, folder) if WRITES_IN_CODE.search(command) else None
        if "<<" in tokens and WRITES_IN_CODE.search(command) and any(INTERPRETERS.match(Path(t).name) for t in tokens):
            found = self._named_in(command, folder)
            if found:
                return found
        simple = []
        for token in [*tokens, ";"]:
            if token not in SEPARATORS:
                simple.append(token)
                continue
            if simple[:1] == ["cd"] and len(simple) > 1:
                folder = folder / Path(simple[1]).expanduser()
            found = self._simple(simple, folder)
            if found:
                return found
            simple = []
        return None

    def _simple(self, words: list, folder: Path) -> "Path | None":
        """One simple command: its redirections, then its operands."""
        plain, targets = [], []
        following = iter(words)
        for word in following:
            if re.fullmatch(r"[0-9&]*>[>|&]*", word):
                targets.append(next(following, ""))
            elif word.startswith("of=") or re.fullmatch(r"<+", word):
                targets += [word[3:]] if word.startswith("of=") else []
            else:
                plain.append(word)
        found = self._first(targets, folder)
        while plain and (
            plain[0] in PREFIXES or re.fullmatch(r"\w+=.*", plain[0]) or (len(plain) > 1 and plain[0].startswith("-"))
        ):
            plain.pop(0)
        if found or not plain:
            return found
        program, operands = Path(plain[0]).name, plain[1:]
        names = [word for word in operands if not word.startswith("-")]
        if program in WRITERS:
            return self._first(names, folder, whole=program in ("rm", "mv", "rmdir"))
        if program in COPIERS:
            return self._first(names[-1:], folder) or self._first(
                [f"{names[-1]}/{Path(n).name}" for n in names[:-1]], folder
            )
        if program in IN_PLACE and any(IN_PLACE[program].search(word) for word in operands):
            return self._first(names, folder)
        if program == "git" and names and names[0] in GIT_WRITERS:
            return self._first(names[1:] or ["."], folder, whole=True)
        if program == "find" and ("-delete" in operands or "-exec" in operands):
            return self._first(names[:1], folder, whole=True)
        if INTERPRETERS.match(program) and WRITES_IN_CODE.search(" ".join(operands)):
            return self._named_in(" ".join(operands), folder)
        return None

    def _first(self, names: list, folder: Path, whole: bool = False) -> "Path | None":
        for name in names:
            found = self.protects(folder / Path(name).expanduser(), whole)
            if found:
                return found
        return None

    def _named_in(self, text: str, folder: Path) -> "Path | None":
        """A protected path that stands anywhere in a text."""
        return self._first(re.findall(r"[\w./~+-]*[\w+-]", text), folder)


if __name__ == "__main__":
    sys.exit(main())
