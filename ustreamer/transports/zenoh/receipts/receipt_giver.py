# SPDX-License-Identifier: Apache-2.0
"""Gives receipts for received messages, and drops copies of messages received before.

In: the messages of the endpoint, between its subscribers and its listener (`listener`). Out: new messages to the
listener, and every 50 ms one put with the ids of what the listener took since then. A copy
gets a receipt again: the sender made it because it had none.

A durable endpoint gives a receipt when the message was sent on or is on disk (`ReceivedStore`). Its last ids are on
disk before their receipts, so that it drops copies after a kill too. Messages that a start finds on disk count as
received: a kill may have come before their ids were written.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import compress
from threading import Event, Lock, Thread
from typing import Final

import zenoh

from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.transport_port import ReceivedStore
from ustreamer.transports.zenoh.errors import zenoh_error_text
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    ID_BYTES,
    ReceiptGiverId,
    receipt_id,
    receipt_ids,
    receipt_key,
    split_receipt,
    token_key,
)
from ustreamer.transports.zenoh.receipts.recent_ids import RecentIds
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import Listener, batch_listener_of

log = logging.getLogger("ustreamer.zenoh")

RECENT_IDS: Final = 65_536
"""Copies of at least this number of messages are detected: as many as a sender keeps without a receipt."""
_INTERVAL_S: Final = 0.05
"""Between two receipts. A receipt costs 0.1 ms here and 0.06 ms at the sender, and both wake threads for it."""
_DURABLE_INTERVAL_S: Final = 0.025
"""For a durable endpoint: a kill may make copies of what is not on disk. Every other round gives receipts."""
_RECEIPT_BYTES: Final = 4_096 * ID_BYTES
_MAX_PENDING_BYTES: Final = 4 * RECENT_IDS * ID_BYTES
_LAST_TRIES: Final = 10
_SYNC_S: Final = 1.1
_NEVER_NS: Final = 1 << 62
_JOIN_S: Final = 5.0


class ReceiptListener:
    """A listener in front of another one: drops copies, and records what the other one took. Equal with an equal one.

    A message that the other one did not take, because it raised, gets no receipt, and its copy counts as new.
    """

    def __init__(self, inner: Listener, giver: "ReceiptGiver") -> None:
        self._inner = inner
        self._giver = giver
        inner_batch = batch_listener_of(inner)
        if inner_batch is not None:
            self._inner_batch = inner_batch
            self.on_batch = self._on_batch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReceiptListener) and self._inner == other._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def __call__(self, message: UMessage, /) -> None:
        id = receipt_id(message.id)
        if self._giver.are_new([message], id) is None:
            try:
                self._inner(message)
            except BaseException:
                self._giver.forget(id)
                raise
        self._giver.record(id)

    def _on_batch(self, messages: Sequence[UMessage], /) -> None:
        ids = new_ids = receipt_ids(messages)
        new = self._giver.are_new(messages, ids)
        if new is not None:
            messages = list(compress(messages, new))
            new_ids = b"".join(compress(split_receipt(ids), new))
        if messages:
            try:
                self._inner_batch(messages)
            except BaseException:
                self._giver.forget(new_ids)
                raise
        self._giver.record(ids)


class ReceiptGiver:
    """The receipts of one endpoint. `given` counts ids in receipts, `duplicates` the dropped copies."""

    def __init__(self, id: ReceiptGiverId, monotonic_ns: Callable[[], int]) -> None:
        """`id` is this process, in the keys of its receipts and tokens."""
        self.given = 0
        self.duplicates = 0
        self.not_announced = 0
        """Filters whose token Zenoh refused."""
        self._id = id
        self._monotonic_ns = monotonic_ns
        self.store: ReceivedStore | None = None
        """Keeps the last ids on disk, and knows what is safe; set before `start`."""
        self._recent = RecentIds(RECENT_IDS)
        self._recent_lock = Lock()
        self._pending: deque[tuple[int, bytes]] = deque()
        """What may need its sender: when the listener took it, and its joined ids, 17 bytes each."""
        self._pending_bytes = 0
        """The bytes of these ids. Not exact while several threads write it, until the next `_move_safe`."""
        self._safe: list[bytes] = []
        """Joined ids of what needs its sender no more, for the next receipt."""
        self._is_unsynced = False
        """Whether a power cut may lose ids that the store has."""
        self._wake = Event()
        self._closing = Event()
        self._tokens: dict[ListenerFilters, zenoh.LivelinessToken] = {}
        self._session: zenoh.Session | None = None
        self._publisher: zenoh.Publisher | None = None
        self._thread: Thread | None = None

    def listener(self, inner: Listener) -> Listener:
        """A listener in front of `inner`."""
        return ReceiptListener(inner, self)

    # --- on the receiving threads -------------------------------------------------------------------------------------

    def are_new(self, messages: Sequence[UMessage], ids: bytes) -> Sequence[bool] | None:
        """A flag for each of these messages with these joined ids: True if it is new. None: all are new."""
        with self._recent_lock:
            new = self._recent.are_new(messages, ids)
            if new is not None:
                self.duplicates += len(new) - sum(new)
        return new

    def forget(self, ids: bytes) -> None:
        """The listener raised: it did not take the messages with these joined ids."""
        with self._recent_lock:
            self._recent.forget(ids)

    def record(self, ids: bytes) -> None:
        """The listener took the messages with these joined ids, or earlier copies of them.

        Above `_MAX_PENDING_BYTES` they are not recorded: the sender keeps them, and a copy gets a receipt later.
        """
        if not self._pending or self._pending_bytes < _MAX_PENDING_BYTES:
            self._pending_bytes += len(ids)
            self._pending.append((self._monotonic_ns(), ids))
        if not self._wake.is_set():
            self._wake.set()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, session: zenoh.Session) -> None:
        """Start to give receipts. Raises zenoh.ZError if the session is closed."""
        if self.store is not None:
            restored = map(receipt_id, self.store.restored())
            self._recent = RecentIds(RECENT_IDS, (*self.store.load(), *restored))
        self._session = session
        self._publisher = session.declare_publisher(
            receipt_key(self._id),
            priority=zenoh.Priority.INTERACTIVE_HIGH,
            # A receipt that is dropped costs a copy. A put that waits would hold up all receipts.
            congestion_control=zenoh.CongestionControl.DROP,
            allowed_destination=zenoh.Locality.REMOTE,
        )
        self._thread = Thread(target=self._run, name=f"zenoh {self._id.endpoint} receipts", daemon=True)
        self._thread.start()

    def announce(self, filters: ListenerFilters) -> None:
        """Announce receipts for what matches `filters`.

        Call before the subscriber of the filters is declared: then senders know of the receipts before their first put.
        """
        if self._session is None or filters in self._tokens:
            return
        try:
            token = self._session.liveliness().declare_token(token_key(self._id, filters))
        except zenoh.ZError as error:  # without it, senders expect no receipt
            self.not_announced += 1
            if self.not_announced == 1:
                extra = {"endpoint": self._id.endpoint, "why": zenoh_error_text(error)}
                log.warning("zenoh.receipts_not_announced", extra=extra)
            return
        self._tokens[filters] = token

    def on_link(self, up: bool) -> None:
        """A link opened (`up`) or closed."""
        if up:
            self.on_ready()

    def on_ready(self) -> None:
        """The announced subscribers are declared: request what was sent before, with an empty receipt."""
        if self._publisher is not None and self._tokens:
            with suppress(zenoh.ZError):  # the session is closed
                self._publisher.put(b"")

    def withdraw(self, filters: ListenerFilters | None = None) -> None:
        """Announce no receipts for `filters` any more; None: for none. What is received still gets its receipt."""
        for each in list(self._tokens) if filters is None else [filters]:
            token = self._tokens.pop(each, None)
            if token is not None:
                with suppress(zenoh.ZError):  # the session and its tokens are gone
                    token.undeclare()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Give the last receipts and end the thread. May be repeated."""
        self.withdraw()
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        if self.store is not None:
            self.store.close()

    # --- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._run_contained(self._give_until_close)
        self._run_contained(self._give_last)

    def _run_contained(self, call: Callable[[], None]) -> None:
        """Call `call`: what it raises does not end the thread. Ids that it had at hand get no receipt."""
        try:
            call()
        except FOREIGN_ERRORS:  # Zenoh may panic
            endpoint = self._id.endpoint
            log.exception("zenoh.receipts_failed", extra={"endpoint": endpoint, **limited(endpoint)})

    def _give_until_close(self) -> None:
        gives_receipt = True
        while not self._closing.wait(_INTERVAL_S if self.store is None else _DURABLE_INTERVAL_S):
            if not (self._pending or self._safe):
                self._wait_pending()
                continue
            self._move_safe()
            gives_receipt = self.store is None or not gives_receipt
            if gives_receipt or not self._pending:
                self._give()

    def _give_last(self) -> None:
        pause = Event()
        for _ in range(_LAST_TRIES):
            self._move_safe()
            self._give()
            if not self._pending:
                break
            pause.wait(_DURABLE_INTERVAL_S)

    def _wait_pending(self) -> None:
        """Wait until something has no receipt yet, or sync the ids on disk."""
        self._wake.clear()
        if self._pending or self._closing.is_set():
            return  # it came before `clear`
        if not self._wake.wait(_SYNC_S if self._is_unsynced else None):
            if self.store is not None:
                self.store.add(b"")
            self._is_unsynced = False

    def _move_safe(self) -> None:
        """Move the ids of what needs its sender no more to `_safe`, and put them on disk if there is a store."""
        before_ns = _NEVER_NS if self.store is None else self.store.safe_before_ns()
        parts: list[bytes] = []
        pending = self._pending
        while pending and pending[0][0] < before_ns:
            parts.append(pending.popleft()[1])
        self._pending_bytes = sum(len(each) for _, each in tuple(pending)) if pending else 0
        excess = self._pending_bytes - RECENT_IDS * ID_BYTES
        while excess > 0:  # the store makes no progress: drop the oldest ids; the sender keeps their messages
            excess -= len(pending.popleft()[1])
        if parts and self.store is not None:
            parts = [b"".join(parts)]
            self.store.add(parts[0])
            self._is_unsynced = True
        self._safe += parts

    def _give(self) -> None:
        """Give the receipts of what is safe."""
        ids = b"".join(self._safe)
        self._safe.clear()
        if self._publisher is None:
            return
        try:
            for begin in range(0, len(ids), _RECEIPT_BYTES):
                part = ids[begin : begin + _RECEIPT_BYTES]
                self._publisher.put(part)
                self.given += len(part) // ID_BYTES
        except zenoh.ZError:  # the session is closed: the sender puts them again
            return
