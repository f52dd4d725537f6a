# SPDX-License-Identifier: Apache-2.0
"""The configuration file: TOML in, checked values out.

In: a TOML file, the transport kinds and the Config classes of plugins. Out: a `StreamerConfig`, or a
ConfigError with every problem of the file. Each problem has its line, key path, value and a suggestion.

Nothing outside this package reads the file. A default stands in the msgspec Struct of its section, which may be that of
a transport, of a plugin or of the core. Nothing is opened: checks of the environment are in `cli/check.py`.

Read config.py first: its docstring lists the sections. validation.py checks a section against a msgspec Struct,
document.py formats problems, source_positions.py finds lines, syntax_errors.py explains text that is not TOML.
faults.py and bare_values.py find what was meant by a value that is none of TOML. review.py has the warnings, secrets.py
the values in files and in the environment, effective.py the configuration with all defaults. The others are small.
"""
