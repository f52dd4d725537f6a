# SPDX-License-Identifier: Apache-2.0
"""The in-process transport: a multicast domain without a wire, for tests, simulations and plugin authors."""
