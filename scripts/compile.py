#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compile one kernel design by shape."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.kernel import compile_kernel
from pipeline.verbs.console import run

run(compile_kernel)
