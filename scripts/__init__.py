# SPDX-License-Identifier: Apache-2.0
"""The verbs, one small program each. No logic: they enter the environment and call pipeline.verbs."""
