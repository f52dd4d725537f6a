# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m ustreamer_pipeline`, the same as `ustreamer-pipeline`."""

import sys

from ustreamer_pipeline.cli import main

sys.exit(main())
