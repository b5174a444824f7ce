# SPDX-License-Identifier: Apache-2.0
"""The verdict: metrics, policy, gates, evidence, diagnosis and prompts. Imports `reference` and `refusal` alone."""
