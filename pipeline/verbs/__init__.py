# SPDX-License-Identifier: Apache-2.0
"""The verbs' command lines: arguments in, lines out, an exit code, and one last line `next:`."""
