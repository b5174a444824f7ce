# SPDX-License-Identifier: Apache-2.0
"""The work: one folder a kernel (source, stage, oracle, page)."""
