# SPDX-License-Identifier: Apache-2.0
"""Judges a SOME/IP story: the promises of docs/delivery.md for UDP and TCP, in both directions.

It compares what a streamer took from a network, what it gave to its kernel for each ECU, what arrived, and what the
streamer reported. What the network lost after a datagram had left is not promised.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Final, NamedTuple

from tests.simulation.host import SimHost
from tests.simulation.host_oracle import LOSS_COUNTERS, HostOracle, Violation
from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Process
from tests.simulation.someip.ecu import SUBSCRIBE_TTL_S, TCP_GROUP, UDP_GROUP
from tests.simulation.someip.network import FLOWS, STREAMER_IP, SomeipFlow
from tests.simulation.someip.wire import TCP, UDP, identity_in
from tests.simulation.someip.world import Key, SomeipWorld

_COUNTERS: Final = (*LOSS_COUNTERS, "tcp_dropped", "refused_event_address")
_CALL_COUNTERS: Final = ("answers_lost", "refused_request_address", "refused_request_limit", "requests_open")
"""Counters of calls without an answer; `requests_open` are those that a stop finds."""
_STOP_NS: Final = 100 * NS_PER_MS
"""Time in which the end of a connection is known here, and in the last log line."""
_RETRANSMIT_NS: Final = 100 * NS_PER_MS
_PROMPT_NS: Final = 200 * NS_PER_MS
"""A message that waits for nothing is on the wire after this time."""
_EXPIRY_MARGIN_NS: Final = 50 * NS_PER_MS
_SHORT_FREEZE_NS: Final = 3 * NS_PER_S
"""A freeze in which no subscription ends."""


class Fault(NamedTuple):
    """A fault of the network or of an ECU: its kind, the address of the host, its begin and its end."""

    kind: str
    ip: str
    begin_ns: int
    end_ns: int


class SomeipOracle(HostOracle):
    """The evidence of one run."""

    loss_counters = _COUNTERS

    def __init__(
        self,
        world: SomeipWorld,
        host: SimHost,
        kinds: Collection[str],
        faults: list[Fault],
    ) -> None:
        super().__init__(host, kinds)
        self._world = world
        self._network_faults = faults
        self._unspent = 0
        """Reports of lost messages without a name that no missing message has used."""
        self._acks: dict[tuple[str, int, Process], list[int]] = {}
        """The times of Acks that a streamer sent, by ECU, event group and process."""
        for each in world.acks:
            self._acks.setdefault((each.ip, each.eventgroup, each.process), []).append(each.at_ns)

    def judge(self) -> list[Violation]:
        """The broken promises; none is good."""
        self._world.note_taken_from_zenoh()
        checks = (
            self._hangs(),
            self._errors(),
            self._unaccounted(),
            self._losses(),
            self._overflow(),
            self._responses(),
            self._duplicates(),
            self._order(),
            self._expiry(),
            self._left(),
            self._unserved(),
        )
        return [violation for check in checks for violation in check]

    # --- losses -------------------------------------------------------------------------------------------------------

    def _losses(self) -> Iterable[Violation]:
        letters = self._stored_letters()
        ids = self._dead_letters()
        named = {identity_in(each.message.payload) for each in letters}
        missing: Counter[str] = Counter()
        for key in self._world.taken:
            flow = FLOWS[key[0]]
            is_reported = key in named or self._world.sent[key].id in ids
            if not is_reported and self._is_missing(key, flow):
                missing[flow.name] += 1
        anonymous, counts = self._reported(len(letters))
        self._unspent = anonymous - missing.total()
        if self._unspent < 0:
            text = f"{missing.total()} messages ({dict(missing)})"
            yield Violation("silent loss", f"{text}; reported: {counts or 'nothing'}")

    def _is_missing(self, key: Key, flow: SomeipFlow) -> bool:
        """Whether a message had to arrive, or to be on the wire of UDP, and did not."""
        world = self._world
        process = world.taken[key].process
        if process in self._host.killed_at_ns:
            return False  # documented: the memory of a killed streamer
        if flow.kind == "call":
            return False  # each call has a response
        if flow.kind in ("in", "ecu call"):
            return key not in world.received
        if flow.protocol == UDP:
            return key not in world.on_wire and self._is_subscribed(key, flow)
        if key in world.received:
            return False
        if key in world.on_wire:
            return not self._may_be_unread(key, flow)
        return self._is_subscribed(key, flow)

    def _is_subscribed(self, key: Key, flow: SomeipFlow) -> bool:
        """Whether the ECU was a subscriber from the time of the message until it could be sent."""
        if not flow.ecu.sd:
            return True
        taken_ns, process = self._world.taken[key]
        group = UDP_GROUP if flow.protocol == UDP else TCP_GROUP
        acks = self._acks.get((flow.ecu.ip, group, process), ())
        place = bisect_left(acks, taken_ns)
        if not place:
            return False
        last_ns = acks[place - 1]  # an Ack answers each Subscribe
        waited_ns = self._waited_ns(taken_ns)
        if waited_ns > last_ns + (SUBSCRIBE_TTL_S - 1) * NS_PER_S:
            return False
        return not self._is_disturbed(flow.ecu.ip, last_ns, waited_ns + _PROMPT_NS)

    def _waited_ns(self, taken_ns: int) -> int:
        """The end of the faults in which a message waits at the streamer."""
        for each in self._network_faults:
            if each.kind == "refuse" and each.begin_ns < taken_ns + _PROMPT_NS and taken_ns < each.end_ns:
                taken_ns = each.end_ns
        return taken_ns

    def _is_disturbed(self, ip: str, from_ns: int, until_ns: int) -> bool:
        """Whether a fault in this time ended a subscription of an ECU, or its connection."""
        return any(
            each.ip in (ip, STREAMER_IP) and each.begin_ns < until_ns and each.end_ns > from_ns
            for each in self._network_faults
            if each.kind != "refuse"
            and (each.kind != "ecu freeze" or each.end_ns - each.begin_ns > _SHORT_FREEZE_NS)
        )

    def _may_be_unread(self, key: Key, flow: SomeipFlow) -> bool:
        """Documented: a killed ECU had not read it for longer than `retransmit_ms`; or the streamer had stopped."""
        first_ns = self._world.on_wire[key][-1]
        killed = [each for each in self._network_faults if each.kind in ("ecu kill", "ecu power")]
        if any(
            each.ip == flow.ecu.ip
            and first_ns < each.begin_ns - _RETRANSMIT_NS
            and self._was_slow(each, first_ns)
            for each in killed
        ):
            return True
        process = self._world.taken[key].process.name
        line = self._stop_lines.get(process)
        # Documented: at a stop what the kernel took is sent, and is not repeated.
        return line is not None and self._is_disturbed_after(flow.ecu.ip, first_ns, line.at_ns)

    def _was_slow(self, kill: Fault, from_ns: int) -> bool:
        """Whether the ECU or its cable stood still before a kill."""
        return any(
            each.ip in (kill.ip, STREAMER_IP) and each.begin_ns <= kill.begin_ns and each.end_ns > from_ns
            for each in self._network_faults
            if each is not kill
        )

    def _is_disturbed_after(self, ip: str, from_ns: int, stopped_ns: int) -> bool:
        return any(
            each.ip in (ip, STREAMER_IP)
            and each.end_ns > from_ns
            and each.begin_ns < stopped_ns + 30 * NS_PER_S
            and each.end_ns > stopped_ns - 5 * NS_PER_S
            # A stop counts what an ended connection may have lost. Only a killed process ends it at once.
            and not (each.kind == "ecu kill" and from_ns < each.begin_ns < stopped_ns - _STOP_NS)
            for each in self._network_faults
        )

    # --- other promises -----------------------------------------------------------------------------------------------

    def _overflow(self) -> Iterable[Violation]:
        """Each datagram that the kernel dropped is counted."""
        kernel = self._host.kernel
        assert kernel is not None
        for run, line in self._ordered_runs():
            counters = line.extra["endpoints"]["chassis"]
            counted = counters["udp_dropped"] + counters["sd_dropped"]
            dropped = kernel.dropped[run.process]
            # The last log line is made before the sockets are closed: later drops are in no line.
            if not kernel.dropped_until_read[run.process] <= counted <= dropped:
                yield Violation("overflow", f"{run.process.name}: {dropped} dropped, {counted} counted")

    def _responses(self) -> Iterable[Violation]:
        """Each call has one response; an answered one is not made again."""
        world = self._world
        ids = {identity_in(each.message.payload) for each in self._stored_letters()}
        counts = Counter({name: self._counted(name) for name in _CALL_COUNTERS})
        unanswered: Counter[str] = Counter()
        for key, (_, process) in world.taken.items():
            flow = FLOWS[key[0]]
            if flow.kind == "call":
                responses = world.responses.get(key, 0)
                if responses > 1 and not self._faults & {"freeze"}:
                    yield Violation("responses", f"{flow.name} {key[1]} has {responses} responses")
                    return
                if not responses and process not in self._host.killed_at_ns:
                    yield Violation("no response", f"{flow.name} {key[1]} was not answered")
                    return
            elif flow.kind == "ecu call" and process not in self._host.killed_at_ns:
                unanswered[flow.name] += key not in world.answered and key not in ids
        if unanswered.total() > counts.total() + max(0, self._unspent):
            text = f"{unanswered.total()} calls of an ECU; reported: {dict(counts)}, {self._unspent} of other counters"
            yield Violation("unanswered", text)

    def _counted(self, name: str) -> int:
        """The sum of a counter of all runs."""
        lines = (line.extra["endpoints"]["chassis"] for _, line in self._ordered_runs())
        return sum(counters.get(name, 0) for counters in lines)

    def _duplicates(self) -> Iterable[Violation]:
        """Over UDP the streamer sends nothing twice; over TCP only after a connection ended."""
        ends = {"ecu kill", "ecu power", "cable", "link", "stop", "kill", "power", "refuse", "ecu freeze"}
        for key, times in chain(self._world.on_wire.items(), self._world.received.items()):
            flow = FLOWS[key[0]]
            if len(times) < 2:
                continue
            if flow.protocol == TCP and flow.kind != "in":
                allowed = bool(self._faults & ends)
            else:
                allowed = bool(self._faults & {"loss", "freeze"}) and times is not self._world.on_wire.get(
                    key
                )
            if not allowed:
                yield Violation("duplicate", f"{flow.name} {key[1]}: {len(times)} times")
                return

    def _order(self) -> Iterable[Violation]:
        """First copies arrive in the order in which the streamer took them."""
        places = {key: place for place, key in enumerate(sorted(self._world.taken, key=self._taken_place))}
        for arrivals in self._world.on_wire, self._world.received:
            last: dict[tuple[int, Process], int] = {}
            for key in arrivals:
                flow = FLOWS[key[0]]
                is_judged = flow.protocol == TCP or flow.kind == "in" or arrivals is self._world.on_wire
                if not is_judged or key not in places:
                    continue
                stream = key[0], self._world.taken[key].process
                if places[key] < last.get(stream, -1):
                    yield Violation("order", f"{flow.name} {key[1]} came after a later one")
                    return
                last[stream] = places[key]

    def _taken_place(self, key: Key) -> tuple[int, int]:
        return self._world.taken[key].at_ns, key[1]

    def _expiry(self) -> Iterable[Violation]:
        """Nothing is given to the kernel after its ttl, over UDP."""
        for key, times in self._world.on_wire.items():
            sent, flow = self._world.sent[key], FLOWS[key[0]]
            if not sent.ttl_ms or flow.protocol == TCP:
                continue  # the rest of a message that the kernel took in part follows later
            late_ns = times[-1] - sent.at_ns - sent.ttl_ms * NS_PER_MS
            if late_ns > _EXPIRY_MARGIN_NS:
                yield Violation(
                    "expired", f"{flow.name} {key[1]} was sent {late_ns // NS_PER_MS} ms after its ttl"
                )
                return

    def _left(self) -> Iterable[Violation]:
        """With a working network, the last stop finds nothing that waits."""
        letters = self._stored_letters(self._host.letters_before_stop)
        left = [each for each in letters if identity_in(each.message.payload) is not None]
        if left:
            yield Violation("left", f"the last stop made {len(left)} dead letters, although all worked")

    def _unserved(self) -> Iterable[Violation]:
        """When all faults are over, an ECU is subscribed again, and the streamer has subscribed its events."""
        for text in self._world.unserved:
            yield Violation("unserved", text)
