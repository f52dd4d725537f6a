# SPDX-License-Identifier: Apache-2.0
"""Judges a run: every promise of docs/delivery.md that the simulation can break.

The oracle knows nothing of the product's inside. It compares three things: the messages that a streamer took from a
network, the messages that arrived, and the reports of the streamer: the ledger of its last log line, the counters of
its endpoints, its dead letters, its spool.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from tests.simulation.host import INSIDE, OUTSIDE, STATE_DIR, SimHost
from tests.simulation.host_oracle import HostOracle, Violation
from tests.simulation.scheduler import NS_PER_MS, Process
from tests.simulation.world import FLOWS, SHARED, World, wire_id
from tests.simulation.zenoh_network import SimApp, SimNetwork
from ustreamer.core.routing.usubscription_codec import CHANGE_RESOURCE, USUBSCRIPTION
from ustreamer.host.storage.dead_letter_store import StoredDeadLetter
from ustreamer.host.storage.spool_records import METADATA_KEYS, decode_record
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.wire import decode

_KILL_WINDOW_MS: Final = 400
"""What a durable endpoint may lose at a kill: messages received in this time, and the commits in progress."""
_SUSPECT_MS: Final = 3_600
"""What a durable endpoint may lose at a kill in an outage: messages put in this time, and the commits in progress. A
silent node is suspect after a third of the lease."""
_WAITING_MS: Final = 450
"""As `_SUSPECT_MS`, while data waits for the node: it is suspect after 300 ms, and one sample of the link later."""
_RECEIPT_MS: Final = 150
"""As `_SUSPECT_MS`, for messages that wait for a receipt: two samples of the link, and the usual time of a receipt."""
_TOKEN_MS: Final = 500
"""As `_SUSPECT_MS`, for messages before a token: the longest time that it may be late."""
_RECORDED_MS: Final = 50
"""The longest time from a message to its id on disk: 10 ms, the 25 ms between two writes, and a margin."""
_SYNCED_MS: Final = 1_100
"""The longest time from an id on disk until it survives a power cut."""
_IN_FLIGHT_MS: Final = 20
"""The longest time that the kernel of a killed process still sends."""
_BACKLOG_MS: Final = 300
"""As `_RECORDED_MS`, for the messages that waited in an outage."""
_MESSAGE_BYTES: Final = 200
"""What a message counts besides its payload, see `retransmit_bytes` in docs/configuration.md."""
_KEPT_SHARE: Final = 7 / 8
"""The least part of `retransmit_bytes` that is kept: messages are evicted in blocks."""
_BATCH: Final = 64
"""The most messages that are put, and evicted, at once."""
_EXPIRY_MARGIN_MS: Final = 20
_CLOCK_MARGIN_NS: Final = 2_000 * NS_PER_MS
_MAX_AHEAD_MS: Final = 60_000


def _is_expected(letter: StoredDeadLetter, returned: Collection[bytes]) -> bool:
    """Whether a stop may make this dead letter although all links work, by docs/delivery."""
    attributes = letter.message.attributes
    if attributes.reqid is not None:
        # A returned Request is denied, and no caller waits there for the error Response.
        return wire_id(attributes.reqid) in returned
    # No entity outside listens to changes of subscriptions. One that a kill left on disk waits until it expires.
    is_change = (attributes.source.ue_id, attributes.source.resource_id) == (USUBSCRIPTION, CHANGE_RESOURCE)
    return is_change and letter.code == UCode.DEADLINE_EXCEEDED


class Oracle(HostOracle):
    """Judges one run."""

    def __init__(self, world: World, host: SimHost, faults: Collection[str]) -> None:
        super().__init__(host, faults)
        self._world = world

    def judge(self) -> list[Violation]:
        """The broken promises; none is good."""
        checks = (
            self._hangs(),
            self._errors(),
            self._unaccounted(),
            self._losses(),
            self._duplicates(),
            self._left(),
            self._repetitions(),
            self._receiver(),
            self._ids(),
            self._expiry(),
            self._order(),
            self._calls(),
            self._waiting_calls(),
        )
        return [violation for check in checks for violation in check]

    # --- what the streamer reports ------------------------------------------------------------------------------------

    def _spooled(self) -> set[bytes]:
        stored = (
            decode_record(key, value)
            for name in (INSIDE, OUTSIDE)
            for key, value in self._host.disk.stores.get(str(STATE_DIR / "spool" / name), {}).items()
            if key not in METADATA_KEYS
        )
        return {wire_id(decode(each.attributes)[0]) for each in stored}

    # --- the promises -------------------------------------------------------------------------------------------------

    def _losses(self) -> Iterable[Violation]:
        dead_letters = self._dead_letters()
        reported = dead_letters | self._spooled()
        missing: Counter[str] = Counter()
        for id, process in self._taken().items():
            if self._is_missing(id) and id not in reported and not self._may_be_lost(id, process):
                missing[self._world.sent[id].flow] += 1
        anonymous, counts = self._reported(len(dead_letters))
        if missing.total() > anonymous:
            text = f"{missing.total()} messages did not arrive ({dict(missing)})"
            yield Violation("silent loss", f"{text}; reported: {counts or 'nothing'}")

    def _taken(self) -> dict[bytes, Process]:
        """The messages that a streamer took and that had a receiver, with the process that took them."""
        return {
            id: process
            for name, network in self._host.networks.items()
            for id, process in network.taken.items()
            if id in self._world.sent and name != self._world.destination(id) and self._is_wanted(id)
        }

    def _is_missing(self, id: bytes) -> bool:
        """Whether an application did not receive a message, and should have."""
        first, backend = self._world.apps[self._world.destination(id)], self._world.backend
        if id not in self._world.received and not self._may_miss(id, first):
            return True
        if backend is None or self._world.sent[id].flow not in SHARED:
            return False
        return id not in self._world.received_by_backend and not self._may_miss(id, backend)

    def _may_miss(self, id: bytes, app: SimApp) -> bool:
        """Documented: what comes after the end of a subscription; what is evicted before the streamer knows of a token.

        Without receipts also what an application loses with its connection, or misses while another one receives it.
        """
        if id in app.excused:
            return True
        network = self._host.networks[self._world.destination(id)]
        if network.name == OUTSIDE and self._host.config.receipts:
            return (
                id in app.early and id in network.put_ns and self._may_be_evicted(id, _TOKEN_MS * NS_PER_MS)
            )
        return id in app.lost or (self._world.sent[id].flow in SHARED and id in app.missed)

    def _returned(self) -> set[bytes]:
        """The messages that a streamer received from their destination: its predecessor had put them there."""
        return {
            id
            for name, network in self._host.networks.items()
            for id in network.taken
            if id in self._world.sent and name == self._world.destination(id)
        }

    def _is_wanted(self, id: bytes) -> bool:
        sent = self._world.sent[id]
        if sent.flow == "response" or not FLOWS[sent.flow].needs_subscription:
            return True
        topic = FLOWS[sent.flow].attributes.source
        if topic in self._world.expiring and self._host.has_started_ahead:
            return False  # documented: a streamer that restarts during a glitch does not know the clock before it
        subscribed_at_ns = self._world.subscribed_at_ns.get(topic)
        return subscribed_at_ns is not None and sent.at_ns > subscribed_at_ns

    def _may_be_lost(self, id: bytes, process: Process) -> bool:
        """Documented losses: in the buffer of an application; with a killed streamer."""
        destination = self._world.destination(id)
        has_receipts = destination == OUTSIDE and self._host.config.receipts
        if id in self._host.networks[destination].lost_at_apps and not has_receipts:
            return True
        killed_at_ns = self._host.killed_at_ns.get(process)
        if killed_at_ns is None:
            return self._was_put_by_killed(id)
        if destination == INSIDE or not self._host.config.durable:
            return True
        window_ms = _KILL_WINDOW_MS + 2 * self._host.disk.slowest_ms
        if self._host.disk.was_refusing:
            return True
        # The time at which the streamer took it: before, it may have waited in Zenoh for a streamer with a full queue.
        origin = INSIDE if destination == OUTSIDE else OUTSIDE
        taken_ns = self._host.networks[origin].taken_ns[id]
        return self._was_put_by_killed(id) or taken_ns > killed_at_ns - window_ms * NS_PER_MS

    def _was_put_by_killed(self, id: bytes) -> bool:
        """A killed process put it: `delivered` means that Zenoh took it, and the retransmit buffer died.

        A durable endpoint has it on disk, unless it was put just before the kill, or is a call without receipts.
        """
        destination = self._world.destination(id)
        network = self._host.networks[destination]
        killed_at_ns = self._host.killed_at_ns.get(network.put_by[id]) if id in network.put_by else None
        if killed_at_ns is None:
            return False
        if destination == INSIDE or not self._host.config.durable or self._host.disk.was_refusing:
            return True
        sent, has_receipts = self._world.sent[id], self._host.config.receipts
        if sent.flow == "call" and not has_receipts:
            return True
        if sent.ttl_ms and sent.at_ns + sent.ttl_ms * NS_PER_MS < killed_at_ns:
            return True  # documented: it expired in an outage, and the counter of that died with the process
        doubt_ms = _RECEIPT_MS if has_receipts else _SUSPECT_MS
        doubt_ns = (doubt_ms + 2 * self._host.disk.slowest_ms) * NS_PER_MS
        return network.put_end_ns(id) > killed_at_ns - doubt_ns or self._may_be_evicted(id, doubt_ns)

    def _may_be_evicted(self, id: bytes, doubt_ns: int) -> bool:
        """More than `retransmit_bytes` was put before the message had to be on disk. A kill forgets the counter."""
        network = self._host.networks[self._world.destination(id)]
        put_ns, process = network.put_ns[id], network.put_by[id]
        puts = network.puts[process]
        first = bisect_left(puts, put_ns, key=itemgetter(0))
        end = bisect_right(puts, put_ns + doubt_ns, key=itemgetter(0))
        # The newest messages are evicted batch by batch, together with those before and after them.
        after = puts[max(0, first - _BATCH) : end + _BATCH]
        kept = sum(payload_bytes + _MESSAGE_BYTES for _, payload_bytes in after)
        return kept > _KEPT_SHARE * self._host.config.retransmit_bytes

    def _duplicates(self) -> Iterable[Violation]:
        """Only lost links and subscriptions, stalls, freezes and kills make duplicates, and a stop whose disk refuses deletions.

        A network with one of these faults is not checked.
        """
        # Documented: then a start repeats all that was sent meanwhile. The record has the number of its first refusal.
        has_refused = any(each.event == "spool.delete_failed" for each in self._host.log)
        for network in (INSIDE, OUTSIDE):
            makers = {
                "kill",
                "power",
                "stall",
                "stall backend",
                "unsubscribe",
                "freeze streamer",
                *(f"{kind} {network}" for kind in ("freeze", "router", "cut")),
            }
            if self._faults & makers:
                continue
            received = [*self._world.received.items(), *self._world.received_by_backend.items()]
            twice = [
                id for id, times in received if len(times) > 1 and self._world.destination(id) == network
            ]
            if twice and not has_refused:
                yield Violation(
                    "duplicate", f"{len(twice)} messages arrived twice, without a lost link or a kill"
                )

    def _left(self) -> Iterable[Violation]:
        """What was refused is tried again: with working links, a stop finds nothing that waits."""
        excused = self._excused()
        stored = self._stored_letters(self._host.letters_before_stop)
        letters = [each for each in stored if wire_id(each.message.id) not in excused]
        returned = self._returned()
        left = sum(not _is_expected(each, returned) for each in letters)
        if left > 0 and not self._host.disk.was_refusing:
            yield Violation("left", f"the last stop made {left} dead letters, although all links worked")

    def _excused(self) -> set[bytes]:
        """What was sent while a receiver had ended one of several subscriptions, and the streamer did not know it yet."""
        return {id for app in self._host.networks[OUTSIDE].apps for id in app.excused}

    def _repetitions(self) -> Iterable[Violation]:
        """After an orderly stop with working links, the disk holds nothing that has arrived."""
        start_ns = self._host.final_start_ns
        if start_ns is None:
            return
        put_ns = self._host.networks[OUTSIDE].put_ns
        received = self._world.received.keys() - self._excused()
        arrived = (id for id in received if self._world.has_arrived(id, start_ns))
        again = [id for id in arrived if start_ns < put_ns.get(id, 0)]
        if again:
            yield Violation(
                "repeated", f"a start sent {len(again)} messages that had arrived before the stop"
            )

    def _receiver(self) -> Iterable[Violation]:
        """What has a receipt is not lost, and comes twice only if it was received just before a kill.

        No kill of the streamer is an excuse, as the sender keeps what has no receipt. An outage inside makes copies.
        After an outage outside the endpoint inside has a backlog, which goes over the disk.
        """
        if not self._host.config.gives_receipts:
            return
        received = self._world.received
        sent = {id for id, each in self._world.sent.items() if each.flow == "back"}
        reported = self._dead_letters() | self._spooled()
        # Documented: without receipts, an application loses what it had not read when its connection ended.
        lost_inside = self._host.networks[INSIDE].lost_at_apps
        missing = sent - received.keys() - reported - lost_inside
        lost = sum(not self._was_killed_before_suspect(id) for id in missing)
        if lost or self._world.unreceipted:
            yield Violation(
                "lost after a receipt", f"{lost} messages; {len(self._world.unreceipted)} have no receipt"
            )
        if f"freeze {INSIDE}" in self._faults:  # its copies are not judged
            return
        has_outage = not self._faults <= {"kill", "power", "slow disk"}
        recorded_ms = _BACKLOG_MS if has_outage else _RECORDED_MS
        window_ns = (recorded_ms + 2 * self._host.disk.slowest_ms) * NS_PER_MS
        if "power" in self._faults:
            window_ns += _SYNCED_MS * NS_PER_MS
        # What the kernel of a killed process has arrives after the kill.
        ends_ns = [each + _IN_FLIGHT_MS * NS_PER_MS for each in self._host.killed_at_ns.values()]
        window_ns += _IN_FLIGHT_MS * NS_PER_MS
        twice = [id for id in sent if len(received.get(id, ())) > 1]
        early = [id for id in twice if not any(0 <= end - received[id][0] < window_ns for end in ends_ns)]
        if early:
            yield Violation("received twice", f"{len(early)} of {len(twice)} long before a kill")

    def _was_killed_before_suspect(self, id: bytes) -> bool:
        """Documented: a kill loses what waits for a node inside that the streamer does not suspect yet."""
        inside = self._host.networks[INSIDE]
        killed_ns = self._host.killed_at_ns.get(inside.put_by[id]) if id in inside.put_by else None
        suspect_ns = (_WAITING_MS + 2 * self._host.disk.slowest_ms) * NS_PER_MS
        return killed_ns is not None and any(0 <= killed_ns - each < suspect_ns for each in inside.full_ns)

    def _ids(self) -> Iterable[Violation]:
        """When the clock is right again, so are the times in new ids."""
        right_ns = self._host.clock_stepped_ns + _CLOCK_MARGIN_NS
        ahead = [ms for at_ns, ms in self._world.made_ids if at_ns > right_ns and abs(ms) > _MAX_AHEAD_MS]
        if ahead:
            yield Violation("id time", f"{len(ahead)} ids of the streamer, the first ahead by {ahead[0]} ms")

    def _expiry(self) -> Iterable[Violation]:
        """Nothing is handed to a transport after its ttl. Documented: one put waits, and others wait for it."""
        if "clock" in self._faults:
            return
        for network in self._host.networks.values():
            for id, at_ns in network.put_ns.items():
                sent = self._world.sent.get(id)
                if sent is None or not sent.ttl_ms:
                    continue
                late_ms = (at_ns - sent.at_ns) // NS_PER_MS - sent.ttl_ms
                if late_ms > _EXPIRY_MARGIN_MS and not self._has_waited(network, id, late_ms):
                    yield Violation(
                        "expired", f"{sent.flow} {sent.number} was put {late_ms} ms after its ttl"
                    )
                    return

    @staticmethod
    def _has_waited(network: SimNetwork, id: bytes, late_ms: int) -> bool:
        """Whether another put waited from the end of the ttl until this put."""
        put_ns, margin_ns = network.put_ns[id], _EXPIRY_MARGIN_MS * NS_PER_MS
        waits = network.put_waits.get(network.put_by[id], ())
        return any(
            begin_ns < put_ns - late_ms * NS_PER_MS + margin_ns and put_ns - margin_ns < end_ns <= put_ns
            for begin_ns, end_ns in waits
        )

    def _order(self) -> Iterable[Violation]:
        """The first copies of a flow arrive in the order in which they were sent.

        Documented: a router that waited for a stalled receiver may deliver messages of an ended streamer after newer
        ones of the next streamer. Those of one process are in order among themselves. An application that sends with
        receipts keeps no order: it sends again what has no receipt. Such a story has no other sender. With receipts, a
        receiver that returns while another one keeps a route open can get newer messages first. Without them, a
        listener that leaves and returns can. So can an application that is lost while the streamer is frozen, or by a
        router as it resumes.
        """
        if self._host.config.gives_receipts:
            return
        for received in self._world.received, self._world.received_by_backend:
            yield from self._order_of(received)

    def _order_of(self, received: Mapping[bytes, Sequence[int]]) -> Iterable[Violation]:
        """As `_order`, of one application. `received` is in the order of the first arrival."""
        last: dict[tuple[str, Process | None], int] = {}
        for id, times in received.items():
            sent = self._world.sent[id]
            if sent.flow in SHARED and (self._host.config.receipts or "unsubscribe" in self._faults):
                continue
            network = self._host.networks[self._world.destination(id)]
            late_of = network.read_late.get(id)
            before = last.get((sent.flow, late_of), 0)
            if sent.number < before:
                text = f"{sent.flow} {sent.number} arrived after {sent.flow} {before}"
                yield Violation("order", text)
                return
            if not network.may_overtake(times[0]):
                last[sent.flow, late_of] = sent.number

    def _calls(self) -> Iterable[Violation]:
        """A caller gets one response; an error response, if the provider did not receive the call.

        A response without room in the queue to the caller is a dead letter itself.
        """
        disturbed = {"kill", "power", "clock", *(f"{kind} {INSIDE}" for kind in ("freeze", "router", "cut"))}
        if self._faults & disturbed:
            return
        taken = self._taken()
        requests = (each.message.attributes.reqid for each in self._stored_letters())
        without_room = {wire_id(each) for each in requests if each is not None}
        for id, sent in self._world.sent.items():
            if sent.flow != "call" or id not in taken or id in without_room:
                continue
            responses = self._world.responses.get(id, 0)
            if responses > 1 and not self._faults - {"reload", "stop", "slow disk"}:
                yield Violation("responses", f"call {sent.number} has {responses} responses")
                return
            was_put = id in self._host.networks[OUTSIDE].put_ns  # then a loss is judged in `_losses`
            if not responses and not was_put and id not in self._spooled():
                yield Violation("no response", f"call {sent.number} was not answered")
                return

    def _waiting_calls(self) -> Iterable[Violation]:
        """Calls wait for their ttl while no Zenoh node is connected."""
        refused = self._world.refused_while_down & self._world.sent.keys()
        if refused and not self._faults & {"kill", "power", "stop", "stall"}:
            yield Violation("refused", f"{len(refused)} calls got UNAVAILABLE while the router was down")
