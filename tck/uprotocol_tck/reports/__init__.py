# SPDX-License-Identifier: Apache-2.0
"""What a run found, as text, as JUnit XML and as a page."""
