# SPDX-License-Identifier: Apache-2.0
"""The fixture of tests with a sender."""

from tests.transports.zenoh.publisher_bench import make_bench

__all__ = ["make_bench"]
