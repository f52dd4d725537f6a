# SPDX-License-Identifier: Apache-2.0
"""Reads the messages in a state directory for commands: a directory in, `StoredMessages` out. Nothing is changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.hooks import StoredMessage, StoredMessages
from ustreamer.host.storage import dead_letter_store
from ustreamer.host.storage.spool_records import METADATA_KEYS, decode_record
from ustreamer.uprotocol.wire import decode

SPOOL: Final = "spool"
"""As in `host.runtime.streamer`, which commands do not import."""


def read_stored_messages(state_dir: Path) -> StoredMessages:
    """The messages in all spools, and the dead letters. Next to a running streamer: those of this moment.

    Raises StoreDamaged for any damage.
    """
    spools = sorted(each.parent for each in (state_dir / SPOOL).glob(f"*/{DATA_FILE}"))
    return StoredMessages(
        {path.name: list(_spooled(path)) for path in spools if "." not in path.name},  # none in quarantine
        list(_dead_letters(state_dir / dead_letter_store.DIRECTORY)),
    )


def _spooled(path: Path) -> Iterator[StoredMessage]:
    with StoreReader("snapshot", path) as reader:
        for key, value in reader.records():
            if key not in METADATA_KEYS:
                record = decode_record(key, value)
                yield StoredMessage(*decode(record.attributes), path.name, record.subscriber)


def _dead_letters(path: Path) -> Iterator[StoredMessage]:
    for _, letter in dead_letter_store.read_letters(path):
        yield StoredMessage(*decode(letter.attributes), letter.endpoint, None, letter.status)
