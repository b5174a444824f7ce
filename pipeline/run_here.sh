#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles, runs, compares and times the designs of this folder on this machine's NPU; writes results.json.
# Needs: aiecc (mlir-aie) and Peano, XRT with pyxrt (source its setup.sh first), python3 with NumPy.
cd "$(dirname "$0")" || exit 2
exec "${PYTHON:-python3}" run_here.py "$@"
