# SPDX-License-Identifier: Apache-2.0
"""Legality: what a program asks of the array, against what the array has, before any compile.

`check(program)` returns every finding; `require_legal(program)` refuses a program with errors and
names them all. One file a resource; each says its rules and where they come from, and README.md
lists them. A legal design is never refused: what can only be estimated or suspected is a warning.
"""

from __future__ import annotations

from npu.legality.check import RESOURCES, check, is_legal, require_legal
from npu.legality.violation import Basis, Severity, Violation, explain

__all__ = ["RESOURCES", "Basis", "Severity", "Violation", "check", "explain", "is_legal", "require_legal"]
