# SPDX-License-Identifier: Apache-2.0
"""Subscriptions at the devices of an earlier `via`: they are ended there.

In: the `via` of the last start, from a file, and the remote topics. Out: Unsubscribe Requests, which are repeated until
they are answered, also after a restart. A key here is (device, topic).
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from ustreamer.core.base.links import LinkStates
from ustreamer.core.routing.subscription_reconciler import SubscriptionReconciler
from ustreamer.core.routing.usubscription_codec import NOT_DELIVERED, VERSION_3, VERSION_4
from ustreamer.core.storage.store_files import sync_directory
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription.remote.peer_versions import OTHER_VERSION
from ustreamer_usubscription.remote.remote_calls import CALL_POLICY

DeviceTopic: TypeAlias = tuple[str, UUri]

_MAX_FILE_BYTES = 64 << 20  # more than that of a million topics

log = logging.getLogger("ustreamer.usubscription")


class _ViaFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`via` of the last start, and what was to be ended then: pairs of device and topic."""

    via: dict[str, str] = {}
    ending: list[tuple[str, str]] = []


class EarlierUpstreams:
    """Belongs to one thread, except `is_pending` and `on_link_changed`."""

    def __init__(self, path: Path, via: Mapping[str, str], links: LinkStates) -> None:
        """`path` is the file of the last `via`. There is none where no `via` was ever configured."""
        self._path = path
        self._via = dict(via)
        self._has_endpoint = links.has_endpoint
        self._reconciler: SubscriptionReconciler[DeviceTopic, bool, UUID] = SubscriptionReconciler(
            CALL_POLICY, lambda key: key[0], links.state_of
        )
        self._ending: set[DeviceTopic] = set()
        # Of each call and not of each device: several answers may refuse the same version.
        self._versions: dict[DeviceTopic, int] = {}
        self._refused: set[DeviceTopic] = set()  # in one version
        self.is_pending = self._reconciler.is_pending
        self.on_link_changed = self._reconciler.on_link_changed
        self.next_due_ns = self._reconciler.next_due_ns

    # --- the file -----------------------------------------------------------------------------------------------------

    def load(self, topics: Iterable[UUri]) -> None:
        """End what the last `via` subscribed and the present one does not. `topics` are all remote topics."""
        before = self._read()
        found = {(device, UUri.parse(topic)) for device, topic in before.ending}
        for topic in topics:
            authority = topic.authority_name
            found.add((before.via.get(authority, authority), topic))
        self._ending = {key for key in found if self._is_earlier(key)}
        for key in sorted(self._ending):
            self._reconciler.set_desired(key, None)
        self._write()

    def _is_earlier(self, key: DeviceTopic) -> bool:
        device, topic = key
        authority = topic.authority_name
        return device != self._via.get(authority, authority) and self._has_endpoint(device)

    def _read(self) -> _ViaFile:
        try:
            if (size := self._path.stat().st_size) > _MAX_FILE_BYTES:
                raise msgspec.DecodeError(f"{size} bytes: expected at most {_MAX_FILE_BYTES}")
            found = msgspec.json.decode(self._path.read_bytes(), type=_ViaFile)
            for _, topic in found.ending:
                UUri.parse(topic)
        except FileNotFoundError:
            return _ViaFile()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, UStatusError) as error:
            log.warning("usubscription.via_unreadable", extra={"file": str(self._path), "why": str(error)})
            return _ViaFile(self._via)
        return found

    def _write(self) -> None:
        if not (self._via or self._ending or self._path.exists()):
            return
        text = msgspec.json.encode(
            _ViaFile(self._via, [(device, str(topic)) for device, topic in sorted(self._ending)])
        )
        staging = self._path.with_name(f"{self._path.name}.new")
        try:
            with staging.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            staging.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            log.warning("usubscription.via_not_stored", extra={"file": str(self._path), "why": str(error)})

    # --- calls --------------------------------------------------------------------------------------------------------

    def pop_due(self, now_ns: int) -> Iterator[tuple[DeviceTopic, int]]:
        """The calls to make now, each with its version; pass each to `begin_call` before taking the next."""
        for entry in self._reconciler.pop_timeouts(now_ns):
            self._use_other_version(entry.key)
            self._reconciler.retry(entry)
        for entry in self._reconciler.pop_ready():
            yield entry.key, self._version_of(entry.key)

    def begin_call(self, key: DeviceTopic, reqid: UUID, now_ns: int) -> None:
        entry = self._reconciler.find(key)
        assert entry is not None
        self._reconciler.begin_call(entry, reqid, now_ns)

    def on_unsent(self, key: DeviceTopic, now_ns: int, jitter: float) -> None:
        """No transport accepted the call: repeat it after a pause."""
        entry = self._reconciler.find(key)
        if entry is not None:
            self._reconciler.on_failure(entry, now_ns, jitter)

    def on_response(self, response: UMessage, now_ns: int, jitter: float) -> None:
        """Any answer of the called device ends the calls, whether it had the subscription or not."""
        reqid, code = response.attributes.reqid, response.attributes.commstatus or UCode.OK
        entry = None if reqid is None else self._reconciler.pending_entry(reqid)
        if entry is None or reqid is None or response.attributes.source.authority_name != entry.key[0]:
            return
        self._reconciler.on_response(reqid)
        if code in NOT_DELIVERED:
            self._reconciler.on_failure(entry, now_ns, jitter)
        elif code is UCode.UNIMPLEMENTED and entry.key not in self._refused:
            self._refused.add(entry.key)
            self._use_other_version(entry.key)
            self._reconciler.retry(entry)
        else:
            self._end(entry.key)

    def _end(self, key: DeviceTopic) -> None:
        self._reconciler.forget(key)
        self._ending.discard(key)
        self._refused.discard(key)
        self._versions.pop(key, None)
        if not self._ending:
            self._write()

    def _use_other_version(self, key: DeviceTopic) -> None:
        self._versions[key] = OTHER_VERSION[self._version_of(key)]

    def _version_of(self, key: DeviceTopic) -> int:
        """A topic of every instance exists in version 4 only."""
        if key[1].ue_instance == ANY_INSTANCE:
            return VERSION_4
        return self._versions.get(key, VERSION_3)
