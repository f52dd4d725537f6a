# SPDX-License-Identifier: Apache-2.0
"""The file with the values of offered fields, `<state_dir>/fields/<endpoint>`: a restarted streamer has them.

In and out: payloads by topic. The file is a framed record with an array of pairs. It is replaced as a whole and not
synchronized, so it survives a kill. After a power cut the providers start too.
"""

import logging
from pathlib import Path
from threading import Event, Thread
from typing import Final

import msgspec

from ustreamer.core.base.log_limit import limited
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import encode_frame, frame_body
from ustreamer.core.storage.store_files import DAMAGED, sibling
from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.someip")

DIRECTORY: Final = "fields"

WRITE_PAUSE_S: Final = 0.5
"""The least time between two writes: a kill loses the values of this time at most."""

_KEY: Final = b"fields"
_JOIN_S: Final = 2.0


class FieldFile:
    """Keeps field values on disk, on a thread of its own: no event waits for the disk."""

    def __init__(self, path: Path, values: FieldValues) -> None:
        self._path = path
        self._values = values
        self._stopped = Event()
        self._thread: Thread | None = None
        self._is_failing = False
        self._written: list[tuple[str, bytes]] = []

    def load(self) -> list[tuple[UUri, bytes]]:
        """The values of the last write by topic. A damaged file is moved aside and logged: there are none then."""
        extra = {"file": str(self._path)}
        try:
            value = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("someip.fields_unreadable", extra=extra | {"reason": str(error)})  # noqa: TRY400
            return []
        try:
            self._written = msgspec.msgpack.decode(frame_body(_KEY, value), type=list[tuple[str, bytes]])
            return [(UUri.parse(topic), payload) for topic, payload in self._written]
        except (StoreDamaged, msgspec.MsgspecError, UStatusError) as error:
            log.error("someip.fields_damaged", extra=extra | {"reason": str(error)})  # noqa: TRY400
            self._path.replace(sibling(self._path, DAMAGED))
            return []

    def start(self) -> None:
        """Write each change from now on."""
        self._thread = Thread(target=self._run, name="fields", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the last change, and end the thread. Idempotent."""
        self._stopped.set()
        self._values.changed.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            self._thread = None

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._values.changed.wait()
            self._values.changed.clear()
            self._save()
            self._stopped.wait(WRITE_PAUSE_S)
        self._save()

    def _save(self) -> None:
        pairs = sorted((str(each.attributes.source), each.payload) for each in self._values.all_values())
        if pairs == self._written:
            return
        new = sibling(self._path, "new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(encode_frame(_KEY, msgspec.msgpack.encode(pairs)))
            new.replace(self._path)
            self._written, self._is_failing = pairs, False
        except OSError as error:
            if not self._is_failing:  # the values stay in memory, and the next change tries again
                extra = {"file": str(self._path), "reason": str(error), **limited(self._path)}
                log.error("someip.fields_not_written", extra=extra)  # noqa: TRY400
            self._is_failing = True
