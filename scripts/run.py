#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run one kernel design by shape and judge it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.kernel import run_kernel
from pipeline.verbs.console import run

run(run_kernel)
