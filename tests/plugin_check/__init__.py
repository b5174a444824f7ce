# SPDX-License-Identifier: Apache-2.0
"""`make plugin-check`: the plugin in the real command-line client, offline, in an empty home. Not part of `make test`."""
