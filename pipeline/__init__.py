# SPDX-License-Identifier: Apache-2.0
"""The process: phases, state, runner, documents."""
