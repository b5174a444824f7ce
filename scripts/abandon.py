#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End a deployment without a proof."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.abandon import abandon
from pipeline.verbs.console import run

run(abandon)
