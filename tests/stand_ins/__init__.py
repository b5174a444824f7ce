# SPDX-License-Identifier: Apache-2.0
"""Small model directories with made-up weights, each with the properties that make faults visible."""
