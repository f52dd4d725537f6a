# SPDX-License-Identifier: Apache-2.0
"""The file with the values of offered fields, `<state_dir>/fields/<endpoint>`: a restarted streamer has them.

In and out: values. The file is a framed record with an array of them. It is replaced as a whole and not synchronized,
so it survives a kill. After a power cut the providers start too.
"""

import logging
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

import msgspec

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import encode_frame, frame_body
from ustreamer.core.storage.store_files import DAMAGED, sibling
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.transports.someip.protocol.mapping import REQUEST_ID_BITS, id_with_request_id
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.someip")

DIRECTORY: Final = "fields"

WRITE_PAUSE_S: Final = 0.5
"""The least time between two writes: a kill loses the values of this time at most."""

_KEY: Final = b"fields"
_JOIN_S: Final = 2.0


_OLDEST_ID: Final = UUID(0x7000, 0b10 << 62)
"""Values of an earlier process are older than all of this one."""


class _Stored(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """A value: the E2E CRC of a bridged one covers its request id, and a corrupt one stays marked."""

    topic: str
    payload: bytes
    request_id: int = 0
    commstatus: int = 0

    @classmethod
    def of(cls, value: UMessage) -> Self:
        attributes = value.attributes
        request_id = value.id.lsb & REQUEST_ID_BITS
        return cls(str(attributes.source), value.payload, request_id, attributes.commstatus or 0)

    def value(self) -> UMessage:
        id = id_with_request_id(_OLDEST_ID, self.request_id)
        value = publish(id, UUri.parse(self.topic), self.payload)
        if not self.commstatus:
            return value
        marked = msgspec.structs.replace(value.attributes, commstatus=UCode.from_number(self.commstatus))
        return UMessage(id, marked, self.payload)


class FieldFile:
    """Keeps field values on disk, on a thread of its own: no event waits for the disk."""

    def __init__(self, path: Path, values: FieldValues, states: StoreStates) -> None:
        """`states` has the file while the disk refuses to write it."""
        self._path = path
        self._values = values
        self._states = states
        self.errors = 0
        """Reads and writes that failed."""
        self._stopped = Event()
        self._thread: Thread | None = None
        self._written: list[_Stored] = []

    def load(self) -> list[UMessage]:
        """The values of the last write. A damaged file is moved aside and logged: there are none then."""
        extra = {"file": str(self._path)}
        try:
            value = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self.errors += 1
            log.error("someip.fields_unreadable", extra=extra | {"reason": str(error)})  # noqa: TRY400
            return []
        try:
            self._written = msgspec.msgpack.decode(frame_body(_KEY, value), type=list[_Stored])
            return [each.value() for each in self._written]
        except (StoreDamaged, msgspec.MsgspecError, UnicodeDecodeError, UStatusError) as error:
            self.errors += 1
            log.error("someip.fields_damaged", extra=extra | {"reason": str(error)})  # noqa: TRY400
            with suppress(OSError):  # then the next write replaces it
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
        stored = sorted(map(_Stored.of, self._values.all_values()))
        if stored == self._written:
            return
        new = sibling(self._path, "new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(encode_frame(_KEY, msgspec.msgpack.encode(stored)))
            new.replace(self._path)
            self._written = stored
            self._states.on_written(str(self._path))
        except OSError as error:
            self.errors += 1  # the values stay in memory, and the next change tries again
            self._states.on_refused(str(self._path), str(error))
