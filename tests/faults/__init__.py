# SPDX-License-Identifier: Apache-2.0
"""Faults planted where a user could be wrong, run through the shipped gates; the unplanted twin of each test passes."""
