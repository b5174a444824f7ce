#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a folder for a machine with an NPU."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.emit import emit
from pipeline.verbs.console import run

run(emit)
