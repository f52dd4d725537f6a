# SPDX-License-Identifier: Apache-2.0
"""Copies finished recordings to an object store: `ustreamer recordings upload`."""
