#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a model directory with made-up weights."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.synthesize import synthesize_model
from pipeline.verbs.console import run

run(synthesize_model)
