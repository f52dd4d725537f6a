# SPDX-License-Identifier: Apache-2.0
"""One module per command of `ustreamer-pipeline`. The file name is the command name: a new file adds a command.

Each module has `HELP` (one line), `arguments(parser)` and `run(options) -> int`, which returns the exit code. In:
parsed options. Out: a summary on stdout, as text or JSON. A module imports Spark inside `run`, so that `--help`
responds at once.

Read ingest.py first; cli.py, one level up, finds the modules.
"""
