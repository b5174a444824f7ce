#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start or go on with a deployment."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.environment import enter

enter()

from pipeline.verbs.deploy import deploy
from pipeline.verbs.console import run

run(deploy)
