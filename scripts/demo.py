#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deploy a real model on the digital twin and let it speak."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.demo import demo
from pipeline.verbs.console import run

run(demo)
