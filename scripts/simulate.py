#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a design that others wrote on the digital twin."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.console import run
from pipeline.verbs.simulate import run_simulate

run(run_simulate)
