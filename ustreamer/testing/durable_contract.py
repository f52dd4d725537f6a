# SPDX-License-Identifier: Apache-2.0
"""The contract of a transport for durable endpoints: subclass `DurableContract` next to `TransportContract`.

A durable endpoint keeps sent messages that may not have arrived (`keep_unconfirmed`), and the ids of received ones
(`keep_received`). A transport that has neither does not need this contract.
"""

from abc import abstractmethod
from collections.abc import Collection, Hashable, Sequence
from contextlib import AbstractContextManager
from threading import Lock

import pytest

from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import PROBE, TOPIC, new_id
from ustreamer.testing.pair import Pair, PairContract
from ustreamer.testing.waiting import wait_until
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID

_MESSAGES = 20
_ALL_SAFE_NS = 1 << 62
_ID_BYTES = 17  # as in `ReceivedStore`: a UUID, and a byte between its halves


class RecordedSentStore:
    """A `SentStore` in memory. While it is `busy` it refuses, and counts `refusals`."""

    def __init__(self) -> None:
        self.busy = False
        self.refusals = 0
        self._kept: dict[tuple[Hashable, UUID], UMessage] = {}
        self._receivers: Sequence[str] = ()
        self.on_disk: dict[UUID, UMessage] = {}
        """For `sent_from_disk`."""
        self._lock = Lock()

    def keep(self, route: Hashable, messages: Sequence[UMessage]) -> Collection[UUID] | None:
        """See SentStore."""
        with self._lock:
            if self.busy:
                self.refusals += 1
                return None
            for message in messages:
                self._kept.setdefault((route, message.id), message)
            return [message.id for message in messages]

    def read(self, route: Hashable, id: UUID) -> UMessage | None:
        """See SentStore."""
        return self._kept.get((route, id))

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        """See SentStore."""
        with self._lock:
            if self.busy:
                self.refusals += 1
                return False
            for key in [each for each in self._kept if each[0] == route and (ids is None or each[1] in ids)]:
                del self._kept[key]
            return True

    def sent_from_disk(self, ids: Collection[UUID]) -> Sequence[UMessage]:
        """See SentStore."""
        return [] if self.busy else [message for id, message in self.on_disk.items() if id in ids]

    def receivers(self) -> Sequence[str]:
        """See SentStore."""
        return self._receivers

    def keep_receivers(self, receivers: Sequence[str]) -> bool:
        """See SentStore."""
        if self.busy:
            self.refusals += 1
        else:
            self._receivers = receivers
        return not self.busy

    def ids(self) -> list[UUID]:
        """The kept messages, in the order in which they came, and those `on_disk`."""
        with self._lock:
            return list(dict.fromkeys([*(id for _, id in self._kept), *self.on_disk]))

    def messages(self) -> list[UMessage]:
        """The kept messages, once for each route."""
        with self._lock:
            return list(self._kept.values())


class RecordedReceivedStore:
    """A `ReceivedStore` in memory. Nothing is safe until a test sets `safe_ns`."""

    def __init__(self, earlier: Sequence[bytes] = (), restored: Sequence[UUID] = ()) -> None:
        self.safe_ns = 0
        self.added: list[bytes] = []
        self.is_closed = False
        self._earlier = earlier
        self._restored = restored

    def load(self) -> Sequence[bytes]:
        """See ReceivedStore."""
        return self._earlier

    def restored(self) -> Sequence[UUID]:
        """See ReceivedStore."""
        return self._restored

    def safe_before_ns(self) -> int:
        """See ReceivedStore."""
        return self.safe_ns

    def add(self, ids: bytes) -> None:
        """See ReceivedStore."""
        self.added += [ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES)]

    def close(self) -> None:
        """See ReceivedStore."""
        self.is_closed = True


class DurableContract(PairContract):
    """Each test checks what a durable endpoint relies on."""

    @abstractmethod
    def outage(self) -> AbstractContextManager[None]:
        """Within the block nothing that `a` sends arrives. When it begins, `a` has not detected that yet."""

    # --- sent messages ------------------------------------------------------------------------------------------------

    def connected(self, pair: Pair, store: RecordedSentStore) -> Mailbox:
        """Open the pair with a store at `a`; returns what `b` receives of TOPIC."""
        inbox = Mailbox()
        pair.a.keep_unconfirmed(store)
        pair.b.register_listener(TOPIC, None, inbox)
        pair.b.open()
        pair.a.open()
        self.wait_connected(pair)
        return inbox

    def publications(self, pair: Pair, count: int) -> list[UMessage]:
        """Send this number of publications of TOPIC."""
        sent = [publish(new_id(), TOPIC, b"%d" % number) for number in range(count)]
        for message in sent:
            pair.a.send(message)
        return sent

    def test_what_may_not_have_arrived_is_kept_until_it_has(self, unopened: Pair) -> None:
        store = RecordedSentStore()
        inbox = self.connected(unopened, store)
        with self.outage():
            sent = [each.id for each in self.publications(unopened, _MESSAGES)]
            wait_until(lambda: set(sent) <= set(store.ids()), "the messages in the store")
            assert [each for each in store.ids() if each in sent] == sent, "in order of their sends"
            assert all(unopened.a.awaits_receipt(each) for each in sent)
            assert inbox.messages == []
        wait_until(lambda: {each.id for each in inbox.messages} == set(sent), "all messages")
        assert list(dict.fromkeys(each.id for each in inbox.messages)) == sent, "in order, copies aside"
        wait_until(lambda: not store.ids(), "the end of their stay in the store")
        assert not any(unopened.a.awaits_receipt(each) for each in sent)

    def test_a_busy_store_is_asked_again(self, unopened: Pair) -> None:
        store = RecordedSentStore()
        inbox = self.connected(unopened, store)
        store.busy = True
        with self.outage():
            sent = {each.id for each in self.publications(unopened, 3)}
            wait_until(lambda: store.refusals, "a message that the store refuses")
            store.busy = False
            wait_until(lambda: sent <= set(store.ids()), "the messages in the store")
            store.busy, store.refusals = True, 0
        wait_until(lambda: sent <= {each.id for each in inbox.messages}, "all messages")
        wait_until(lambda: store.refusals, "a release that the store refuses")
        store.busy = False
        wait_until(lambda: not store.ids(), "the end of their stay in the store")

    def test_what_is_unconfirmed_at_the_end_is_returned_in_order(self, unopened: Pair) -> None:
        self.connected(unopened, RecordedSentStore())
        with self.outage():
            sent = self.publications(unopened, 5)
            found = unopened.a.finish().messages
            # The connection was tried with other messages, which may be unconfirmed too.
            assert [each for each in found if each.attributes.source == TOPIC] == sent

    # --- received messages --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("safe", [False, True])
    def test_an_id_is_added_when_its_message_is_safe(self, unopened: Pair, *, safe: bool) -> None:
        store, inbox, probes = RecordedReceivedStore(), Mailbox(), Mailbox()
        unopened.b.keep_received(store)
        unopened.b.register_listener(TOPIC, None, inbox)
        unopened.b.register_listener(PROBE, None, probes)
        unopened.b.open()
        unopened.a.open()
        store.safe_ns = _ALL_SAFE_NS
        self.wait_connected(unopened)
        wait_until(lambda: store.added, "the id of the first message")
        store.safe_ns = _ALL_SAFE_NS if safe else 0
        sent = self.publications(unopened, 5)
        assert inbox.wait(5) == sent
        if safe:
            wait_until(lambda: len(store.added) == len(probes.messages) + 5, "the ids of all messages")
        else:
            assert inbox.wait(6, 0.2) == sent  # time for a mistake
        unopened.b.close()
        assert safe or len(store.added) <= len(probes.messages), "an id of a message that a kill can lose"
        assert {len(each) for each in store.added} == {_ID_BYTES}
        assert len(set(store.added)) == len(store.added)
        assert store.is_closed

    def test_copies_of_what_an_earlier_process_received_are_dropped(self) -> None:
        first, second = RecordedReceivedStore(), publish(new_id(), TOPIC, b"second")
        first.safe_ns = _ALL_SAFE_NS
        taken = publish(new_id(), TOPIC, b"first")
        with self.make_pair() as pair:
            self.exchange(pair, first, [taken])
        with self.make_pair() as pair:
            again = RecordedReceivedStore(first.added)
            assert self.exchange(pair, again, [taken, second]) == [second]

    def test_copies_of_a_restored_message_are_dropped(self) -> None:
        restored, other = (publish(new_id(), TOPIC, payload) for payload in (b"restored", b"other"))
        with self.make_pair() as pair:
            store = RecordedReceivedStore(restored=[restored.id])
            assert self.exchange(pair, store, [restored, other, other]) == [other]

    def exchange(self, pair: Pair, store: RecordedReceivedStore, sent: Sequence[UMessage]) -> list[UMessage]:
        """Send messages to `b` with a store; returns what its listener receives up to the last one. Closes the pair."""
        inbox, last = Mailbox(), publish(new_id(), TOPIC, b"last")
        store.safe_ns = _ALL_SAFE_NS
        pair.b.keep_received(store)
        pair.b.register_listener(TOPIC, None, inbox)
        try:
            pair.b.open()
            pair.a.open()
            self.wait_connected(pair)
            for message in (*sent, last):
                pair.a.send(message)
            wait_until(lambda: last in inbox.messages, "the last message")
            wait_until(lambda: len(store.added) >= len(inbox.messages), "their ids")
        finally:
            pair.a.close()
            pair.b.close()
        return inbox.messages[:-1]
