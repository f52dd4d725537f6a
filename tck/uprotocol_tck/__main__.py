# SPDX-License-Identifier: Apache-2.0
import sys

from uprotocol_tck.cli import main

sys.exit(main())
