# SPDX-License-Identifier: Apache-2.0
"""`python -m ustreamer_pipeline`, which is `ustreamer-pipeline`."""

import sys

from ustreamer_pipeline.cli import main

sys.exit(main())
