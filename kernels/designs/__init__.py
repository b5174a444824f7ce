# SPDX-License-Identifier: Apache-2.0
"""Designs: stages composed into one `aie.device` with one sequence and named operands."""
