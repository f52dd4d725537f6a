# SPDX-License-Identifier: Apache-2.0
"""A correct transport with a receiving thread and link reports, without a network. Wrong ones are derived from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread, current_thread

from ustreamer.core.delivery.ports import SendBatch
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.transport_port import ReceivingThread
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
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
