# SPDX-License-Identifier: Apache-2.0
"""The error of a damaged store."""

from ustreamer.uprotocol.ustatus import UCode, UStatusError


class StoreDamaged(UStatusError):
    """The store holds bytes that no streamer wrote. DATA_LOSS; the message names the file or the record."""

    def __init__(self, message: str) -> None:
        super().__init__(UCode.DATA_LOSS, message)
