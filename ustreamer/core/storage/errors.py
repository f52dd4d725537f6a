# SPDX-License-Identifier: Apache-2.0
"""The errors of a store that cannot be used as it is."""

from ustreamer.uprotocol.ustatus import UCode, UStatusError


class StoreDamaged(UStatusError):
    """The store holds bytes that no streamer wrote. DATA_LOSS; the message names the file or the record."""

    def __init__(self, message: str) -> None:
        super().__init__(UCode.DATA_LOSS, message)


class StoreTooNew(UStatusError):
    """The store was written by a later version of this program. FAILED_PRECONDITION."""

    def __init__(self, message: str) -> None:
        super().__init__(UCode.FAILED_PRECONDITION, message)


class NotWritable(UStatusError):
    """This process may not write at a path. FAILED_PRECONDITION, as an error of the configuration.

    The message names the path, its mount or permissions, and what is expected.
    """

    def __init__(self, message: str) -> None:
        super().__init__(UCode.FAILED_PRECONDITION, message)
