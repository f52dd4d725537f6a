# SPDX-License-Identifier: Apache-2.0
"""A correct transport with a receiving thread and link reports, without a network. Wrong ones are derived from it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread, current_thread

from ustreamer.core.delivery.ports import SendBatch
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import ReceivedStore, ReceivingThread, SentStore, Unconfirmed
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

JOIN_S = 2.0

OnAnnouncements = Callable[[frozenset[Announcement]], None]
OnAdvertisements = Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]


class QueuedTransport(LocalTransport):
    """Listeners run on a thread of the receiving attachment. The link is up while another attachment is open."""

    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.inbox: SimpleQueue[UMessage | None] = SimpleQueue()
        self.thread: Thread | None = None
        self.turns = 0
        self.waiting = False
        self.watchers: list[Callable[[bool], None]] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        super().open()
        self.thread = Thread(target=self.run, name=f"queued {self.authority}", daemon=True)
        self.thread.start()
        self.report_all()

    def close(self) -> None:
        was_open = self.thread is not None and self._state != "closed"
        super().close()
        if self.thread is not None and was_open:
            self.inbox.put(None)
            self.join(self.thread)
            for other in self.network.attached:
                if isinstance(other, QueuedTransport):
                    other.report(up=len(self.network.attached) > 1)

    def join(self, thread: Thread) -> None:
        if thread is not current_thread():
            thread.join(JOIN_S)

    def report_all(self) -> None:
        attached = self.network.attached
        for each in attached:
            if isinstance(each, QueuedTransport):
                each.report(up=len(attached) > 1)

    def report(self, *, up: bool) -> None:
        for changed in self.watchers:
            try:
                changed(up)
            except ValueError:
                continue

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        self.watchers.append(changed)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _receive(self, message: UMessage) -> bool:
        if self._state != "open":
            return False
        self.inbox.put(message)
        return True

    def run(self) -> None:
        while True:
            self.waiting = True
            message = self.inbox.get()
            self.waiting = False
            if message is None:
                return
            self.turns += 1
            if self._state == "open":
                self.deliver(message)
            self.turns += 1

    def deliver(self, message: UMessage) -> None:
        self._listeners.deliver(message)

    def receiving_threads(self) -> Sequence[ReceivingThread]:
        thread = self.thread
        if thread is None or self._state == "closed":
            return []
        return [ReceivingThread(thread.name, self.turns, self.waiting)]

    # --- sending ------------------------------------------------------------------------------------------------------

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        def transmit_batch(messages: Iterable[UMessage], /) -> int:
            sent = 0
            for message in messages:
                try:
                    self.send(message)
                except UStatusError:
                    break
                sent += 1
            return sent

        return transmit_batch

    def statistics(self) -> Mapping[str, int]:
        return {
            **super().statistics(),
            "refused_full": 0,
            "links_now": max(0, len(self.network.attached) - 1),
        }


class PeeredTransport(QueuedTransport):
    """With announcements and topic advertisements."""

    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.announced: frozenset[Announcement] = frozenset()
        self.advertised: frozenset[TopicAdvertisement] = frozenset()
        self.peer_watchers: list[OnAnnouncements] = []
        self.topic_watchers: list[OnAdvertisements] = []

    def peers(self) -> "list[PeeredTransport]":
        return [each for each in self.network.attached if isinstance(each, PeeredTransport)]

    def announce(self, announcements: frozenset[Announcement]) -> None:
        self.announced = announcements
        every: frozenset[Announcement] = frozenset().union(*(each.announced for each in self.peers()))
        for each in self.peers():
            for changed in each.peer_watchers:
                changed(every)

    def watch_peers(self, changed: OnAnnouncements) -> None:
        self.peer_watchers.append(changed)

    def trust_peers(self, is_trusted: Callable[[RouterId, str], bool]) -> None:
        """Never stands by."""

    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        added, removed = advertisements - self.advertised, self.advertised - advertisements
        self.advertised = advertisements
        for each in self.peers():
            for changed in each.topic_watchers:
                changed(added, removed)

    def watch_topic_advertisements(self, changed: OnAdvertisements) -> None:
        self.topic_watchers.append(changed)

    def stop_receiving(self) -> None:
        if self._state == "open":
            self.announce(frozenset())
            self.advertise_topics(frozenset())
        super().stop_receiving()

    def close(self) -> None:
        self.stop_receiving()
        super().close()


class CuttableNetwork(LocalNetwork):
    """Nothing arrives while it is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False


class DurableTransport(QueuedTransport):
    """Keeps what it cannot deliver, and ids of received messages. A thread retries each 2 ms."""

    network: CuttableNetwork

    def __init__(self, network: CuttableNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.lock = Lock()
        self.sent: dict[UUID, UMessage] = {}
        self.kept: set[UUID] = set()
        self.store: SentStore | None = None
        self.received: ReceivedStore | None = None
        self.known: set[bytes] = set()
        self.unsafe: deque[tuple[int, bytes]] = deque()
        self.ended = Event()
        self.server = Thread(target=self.serve, name=f"durable {authority}", daemon=True)

    # --- life ---------------------------------------------------------------------------------------------------------

    def keep_unconfirmed(self, store: SentStore) -> None:
        self.store = store

    def keep_received(self, store: ReceivedStore) -> None:
        self.received = store

    def open(self) -> None:
        if self.received is not None:
            self.known = {*self.received.load(), *map(self.receipt, self.received.restored())}
        super().open()
        self.server.start()

    def close(self) -> None:
        self.ended.set()
        if self.server.is_alive() and self.server is not current_thread():
            self.server.join(JOIN_S)
        super().close()
        if self.received is not None:
            self.received.close()

    def finish(self) -> Unconfirmed:
        self.close()
        return Unconfirmed(tuple(self.sent.values()))

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        with self.lock:
            if not (self.network.is_cut or self.sent):
                super().send(message)
                return
            self.sent[message.id] = message

    def awaits_receipt(self, id: UUID) -> bool:
        return id in self.sent

    def serve(self) -> None:
        while not self.ended.wait(0.002):
            self.keep_sent()
            self.send_again()
            self.add_received()

    def keep_sent(self) -> None:
        new = [each for id, each in list(self.sent.items()) if id not in self.kept]
        if new and self.store is not None and self.store.keep("all", new) is not None:
            self.kept |= {each.id for each in new}
        old = self.kept - self.sent.keys()
        if old and self.store is not None and self.store.release("all", old):
            self.kept -= old

    def send_again(self) -> None:
        with self.lock:
            while self.sent and not self.network.is_cut:
                message = next(iter(self.sent.values()))
                super().send(message)
                del self.sent[message.id]

    # --- receiving ----------------------------------------------------------------------------------------------------

    @staticmethod
    def receipt(id: UUID) -> bytes:
        return id.msb.to_bytes(8, "big") + b"-" + id.lsb.to_bytes(8, "big")

    def deliver(self, message: UMessage) -> None:
        receipt = self.receipt(message.id)
        if self.received is not None and receipt in self.known:
            return
        self.known.add(receipt)
        super().deliver(message)
        self.unsafe.append((SYSTEM_CLOCK.monotonic_ns(), receipt))

    def add_received(self) -> None:
        while self.received is not None and self.unsafe and self.is_safe(self.unsafe[0][0]):
            self.received.add(self.unsafe.popleft()[1])

    def is_safe(self, received_ns: int) -> bool:
        return self.received is not None and received_ns < self.received.safe_before_ns()
