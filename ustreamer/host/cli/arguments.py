# SPDX-License-Identifier: Apache-2.0
"""Types and choices of arguments that several commands share. The parsers of all commands import this module."""

import argparse
from typing import Final

MESSAGE_TYPES: Final = ("publish", "notification", "request", "response")
VERDICTS: Final = ("delivered", "throttled", "expired", "dead_lettered", "denied", "no_subscriber")
"""The names of `Verdict` but QUEUED."""
TOP_ORDERS: Final = ("rate", "throttled", "p99", "topic")
"""The keys of `top_command.SORT_KEYS`."""


def uuri_pattern(text: str) -> str:
    """The text of a valid UUri, which may have wildcards. Raises ArgumentTypeError."""
    from ustreamer.uprotocol.ustatus import UStatusError
    from ustreamer.uprotocol.uuri import UUri

    try:
        UUri.parse(text)
    except UStatusError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return text
