# SPDX-License-Identifier: Apache-2.0
"""The phases, one module each: what is run, and which gate judges it."""
