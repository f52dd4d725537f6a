# SPDX-License-Identifier: Apache-2.0
"""Importers: they convert configurations of other programs to a configuration of the streamer.

In: a file: the JSON of a vsomeip host, or the CONFIG.json5 of Eclipse's up-streamer. Out: TOML text that
`ustreamer check` accepts, and one line for every setting that could not be converted, with its place and the reason.

Importers read one file and write nothing. `cli/import_command.py` prints both outputs.

Read up_streamer.py first, the shorter one, then vsomeip/. json5.py is a reader for JSON with comments.
"""
