# SPDX-License-Identifier: Apache-2.0
"""The configuration file: TOML in, checked values out.

In flow a TOML file, the transport kinds and the Config classes of plugins. Out flow a `StreamerConfig`, or a
ConfigError with every problem of the file. Each problem has its line, key path, value and a suggestion.

Nothing outside this package reads the file or sets a default. Nothing is opened: checks of the environment are in
`cli/check.py`.

Read config.py first: its docstring lists the sections. validation.py checks a section against a msgspec Struct,
document.py formats problems, source_positions.py finds lines, syntax_errors.py explains text that is not TOML.
section_schema.py and endpoint_text.py are small helpers.
"""
