#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write down a decision or a lesson as a record of the evidence."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.record import record
from pipeline.verbs.console import run

run(record)
