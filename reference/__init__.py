# SPDX-License-Identifier: Apache-2.0
"""The CPU reference: what the right answer is, in FP32, from the model directory alone."""
