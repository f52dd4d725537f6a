# SPDX-License-Identifier: Apache-2.0
"""The process: configuration, plugins, threads, endpoints, command line."""
