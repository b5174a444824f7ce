#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Take results from a machine with an NPU back as evidence."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.import_results import import_results
from pipeline.verbs.console import run

run(import_results)
