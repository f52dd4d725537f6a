# SPDX-License-Identifier: Apache-2.0
"""The documentation site (`make docs`): the Markdown files of the repository, where they are, and docs/index.md."""

project = "uStreamer"
root_doc = "docs/index"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**.md", "examples/**.md", "pipeline/README.md", "plugins/*/README.md"]
exclude_patterns = [".*", "build", "dist"]
myst_heading_anchors = 4  # the anchors that GitHub makes
html_theme = "furo"  # has its fonts and scripts with it: a reader's browser asks no other host
html_title = "uStreamer"
html_copy_source = False
html_extra_path = ["site"]
