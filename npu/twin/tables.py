# SPDX-License-Identifier: Apache-2.0
"""Columns of a schedule's operation table; replay.cc reads the same."""

from __future__ import annotations

COPY, CALL = 0, 1
# Columns of the operation table.
KIND, SEGMENT, SEGMENTS, LENGTH, SOURCE_REGION, SOURCE, DEST_REGION, DEST, CHECK = range(9)
FUNCTION, CORE, ARGUMENT, ARGUMENTS = 1, 2, 3, 4
COLUMNS = 9
IMMEDIATE = -1  # region of an integer argument
ZERO = -1  # source offset of a segment of zeros
