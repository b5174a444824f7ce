#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Put a question to a human, or answer it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.ask import ask
from pipeline.verbs.console import run

run(ask)
