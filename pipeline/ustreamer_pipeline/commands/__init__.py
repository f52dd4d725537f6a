# SPDX-License-Identifier: Apache-2.0
"""One module per command of `ustreamer-pipeline`, found by its name: adding a file adds a command.

Each has `HELP` (one line), `arguments(parser)` and `run(options) -> int`, the exit code. Spark is imported in `run`, so
that `--help` answers at once.
"""
