# SPDX-License-Identifier: Apache-2.0
"""The verbs' own argument parsers, taken from the verbs themselves: what a document says is held against these."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import patch

PACK = Path(__file__).resolve().parents[2]


class _Caught(Exception):
    """Carries the parser that a verb was about to use."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Verb name -> its parser, for every script that runs a verb."""
    return {path.stem: parser_of(verb) for path in sorted(PACK.glob("scripts/*.py")) if (verb := verb_of(path))}


def verb_of(script: Path) -> Callable[[list[str]], object] | None:
    """The function that a script hands to `run`; None for a script that is no verb."""
    tree = ast.parse(script.read_text())
    imports = {
        alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for node in tree.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "run":
            name = call.args[0].id  # type: ignore[attr-defined]
            return getattr(importlib.import_module(imports[name]), name)
    return None


def parser_of(verb: Callable[[list[str]], object]) -> argparse.ArgumentParser:
    """Begin a verb and stop it where it parses its arguments, before it does anything."""

    def caught(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Caught(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", caught):
        try:
            verb([])
        except _Caught as stop:
            return stop.parser
    raise AssertionError(f"{verb} does not parse arguments first")


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """Every option string of a parser."""
    return {option for action in parser._actions for option in action.option_strings}
