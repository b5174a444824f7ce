# SPDX-License-Identifier: Apache-2.0
"""The choice: which operators an entry needs, which designs carry them out, and where their operands live."""
