# SPDX-License-Identifier: Apache-2.0
"""The documentation site (`make docs`): the Markdown files of the repository, where they are, and docs/index.md.

The pages of docs/reference are filled from the code: by autodoc, and here where it has no means.
"""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# The pipeline is not installed for the site: it has Spark.
sys.path[:0] = [str(ROOT), str(ROOT / "pipeline")]
os.environ["COLUMNS"] = "100"  # of a usage

from docs.reference.commands import commands_text  # noqa: E402
from docs.reference.docstrings import as_rst  # noqa: E402

project = "uStreamer"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = [
    "*.md",
    "docs/**.md",
    "examples/**.md",
    "pipeline/README.md",
    "plugins/*/README.md",
    "tck/README.md",
    "clients/*/README.md",
]
exclude_patterns = [".*", "build", "dist"]
myst_heading_anchors = 4  # the anchors that GitHub makes
html_theme = "furo"  # has its fonts and scripts with it: a reader's browser asks no other host
html_title = "uStreamer"
html_copy_source = False
html_extra_path = ["site"]

default_role = "code"  # docstrings have `names` as Markdown has them
autodoc_member_order = "bysource"
autodoc_default_options = {"undoc-members": True, "show-inheritance": True, "no-value": True}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100


def fill_in(app: Any, page: str, source: list[str]) -> None:
    """Put the commands into their page."""
    if page == "docs/reference/commands":
        source[0] = source[0].replace("<!-- commands -->", commands_text())


def mark_blocks(app: Any, kind: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Change a docstring in place."""
    lines[:] = as_rst(lines)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", fill_in)
    app.connect("autodoc-process-docstring", mark_blocks)
