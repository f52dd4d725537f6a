# SPDX-License-Identifier: Apache-2.0
"""The command line `ustreamer`: one module per group of commands.

In: arguments, configuration files and responses of the admin socket. Out: text or JSON on stdout, problems on
stderr, and an exit code (`main.ExitCode`).

`run` starts a streamer in this process. `check`, `explain` and `import` read files only. `reload`, `routes`, `top`,
`tap` and parts of `dead-letters` send a request to a running streamer. Plugins add commands with a module `commands`
(docs/plugins.md).

Read main.py first, then check.py (a short command) and admin_commands.py (commands for a running streamer).
"""
