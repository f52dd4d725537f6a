# SPDX-License-Identifier: Apache-2.0
"""The service discovery of an ECU at byte level, by the tables of the standard: one service, with runs of any length.

It sends input that no library sends: duplicates, reordered datagrams and session numbers near the wrap.
"""

import socket
import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from someip.header import SOMEIPHeader, SOMEIPSDEntryType, SOMEIPSDHeader

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S
from tests.e2e.rigs.sd_ecu import SD_GROUP

FIND_ENTRY, OFFER_ENTRY, SUBSCRIBE_ENTRY, ACK_ENTRY = 0x00, 0x01, 0x06, 0x07
UDP_PROTOCOL, TCP_PROTOCOL = 17, 6
EVENTGROUP: Final = 1
BOOT_S: Final = 0.15
"""The minimum boot time of an ECU.

A datagram within 50 ms may be a reordered one; the rest is margin for a busy machine.
"""
MAX_GAP_S: Final = 0.025
"""The maximum gap between a datagram and its duplicate or reordered successor; a longer gap is a machine stall."""
_PAUSE_S: Final = 0.005
_TTL_S: Final = 3
_LAST: Final = 0xFFFF


def sd_entry(kind: int, service: int, ttl: int, last: int, options: int = 1) -> bytes:
    """An entry for instance 1 and version 1 with the first `options`; `last` are its last 32 bits."""
    return struct.pack(">BBBBHHI", kind, 0, 0, options << 4, service, 1, 1 << 24 | ttl) + struct.pack(
        ">I", last
    )


def endpoint_option(address: tuple[str, int], protocol: int = UDP_PROTOCOL) -> bytes:
    """An IPv4 endpoint option."""
    host, port = address
    return struct.pack(">HBB4sBBH", 9, 0x04, 0, socket.inet_aton(host), 0, protocol, port)


def sd_message(session: int, reboot: bool, entries: bytes, options: bytes = b"") -> bytes:
    """A message of service discovery; bytes 10 and 11 are the session number."""
    flags = 0xC000_0000 if reboot else 0x4000_0000
    payload = struct.pack(">II", flags, len(entries)) + entries + struct.pack(">I", len(options)) + options
    return wire.someip(0xFFFF, 0x8100, wire.SOMEIP_NOTIFICATION, payload, session=session)


class SubscribeEntry(NamedTuple):
    """A received Subscribe or StopSubscribe."""

    service: int
    eventgroup: int
    ttl: int
    sender: tuple[str, int]
    at: float


def subscribe_entries_in(datagram: bytes, sender: tuple[str, int]) -> Iterator[SubscribeEntry]:
    """Decode with the library `someip`."""
    now = time.monotonic()
    message, _ = SOMEIPHeader.parse(datagram)
    header, _ = SOMEIPSDHeader.parse(message.payload)
    for each in header.resolve_options().entries:
        if each.sd_type == SOMEIPSDEntryType.Subscribe:
            yield SubscribeEntry(each.service_id, each.minver_or_counter & 0xFFFF, each.ttl, sender, now)


class _SessionCounter:
    """The session numbers of one direction in one life."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> tuple[int, bool]:
        self._count += 1
        return (self._count - 1) % _LAST + 1, self._count <= _LAST

    def jump_near_wrap(self) -> None:
        self._count = max(self._count, _LAST - 2)


class RawSdEcu:
    """One service with one event group; `sd` is a socket bound to the address and port of service discovery.

    `endpoints` are the options of its Offers. Belongs to one thread.
    """

    def __init__(self, sd: socket.socket, service: int, *endpoints: bytes) -> None:
        self._sd = sd
        self._service = service
        self._options = b"".join(endpoints)
        self._count = len(endpoints)
        self._group = (SD_GROUP, sd.getsockname()[1])
        sd.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sd.getsockname()[0]))
        self.stall_count = 0
        """How often the machine delayed a datagram so long that it may count as a reboot."""
        self.reset_sessions()

    def reset_sessions(self) -> None:
        self._multicasts, self._unicasts = _SessionCounter(), _SessionCounter()

    def _offer(self) -> bytes:
        offered = sd_entry(OFFER_ENTRY, self._service, _TTL_S, 0, self._count)
        return sd_message(*self._multicasts.next(), offered, self._options)

    def send_offer(self) -> float:
        """Send an Offer to the group; returns the time."""
        now = time.monotonic()
        self._sd.sendto(self._offer(), self._group)
        return now

    def send_subscribe(
        self, service: int, eventgroup: int, destination: tuple[str, int], option: bytes
    ) -> None:
        """Subscribe to another ECU's service, with the endpoint in `option`."""
        subscribe_entry = sd_entry(SUBSCRIBE_ENTRY, service, _TTL_S, eventgroup)
        self._sd.sendto(sd_message(*self._unicasts.next(), subscribe_entry, option), destination)

    def send_ack(self, subscribe_entry: SubscribeEntry) -> None:
        accepted = sd_entry(
            ACK_ENTRY, subscribe_entry.service, subscribe_entry.ttl, subscribe_entry.eventgroup, 0
        )
        self._sd.sendto(sd_message(*self._unicasts.next(), accepted), subscribe_entry.sender)

    def ack_subscriptions(self, seconds: float, until_subscribed: bool = False) -> SubscribeEntry | None:
        """Acknowledge Subscribes for `seconds`, or until the first one, which is returned."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._sd.settimeout(left)
            try:
                datagram, sender = self._sd.recvfrom(65_535)
            except TimeoutError:
                break
            for subscribe_entry in subscribe_entries_in(datagram, sender):
                if subscribe_entry.ttl:
                    self.send_ack(subscribe_entry)
                    if until_subscribed:
                        return subscribe_entry
        return None

    def offer_until_subscribed(self) -> float:
        """Send the first Offer of a life and wait for the Subscribe; returns the elapsed time."""
        offered = self.send_offer()
        subscribe_entry = self.ack_subscriptions(DEADLINE_S, until_subscribed=True)
        assert subscribe_entry is not None, (
            f"service {self._service:#06x}: no Subscribe within {DEADLINE_S} s"
        )
        return subscribe_entry.at - offered

    def send_reordered_offers(self, *, wraps: bool) -> None:
        """Send duplicated and reordered Offers; with `wraps`, across the wrap of the session number."""
        if wraps:
            self._multicasts.jump_near_wrap()
            self._unicasts.jump_near_wrap()
            for _ in range(3):
                self.send_offer()
                self.ack_subscriptions(_PAUSE_S)
        first, second, third = (self._offer() for _ in range(3))
        before = time.monotonic()
        for datagram in (first, first, third, second):
            self._sd.sendto(datagram, self._group)
        self.stall_count += time.monotonic() - before > MAX_GAP_S

    def power_off(self) -> None:
        """Send nothing for the boot time, and drop everything received meanwhile."""
        until = time.monotonic() + BOOT_S
        while (left := until - time.monotonic()) > 0:
            self._sd.settimeout(left)
            try:
                self._sd.recv(65_535)
            except TimeoutError:
                return

    def run_lives(self, lives: int) -> list[float]:
        """Run `lives` lives; returns the time from Offer to Subscribe of each."""
        taken = []
        for number in range(lives):
            if number:
                self.power_off()
                self.reset_sessions()
            taken.append(self.offer_until_subscribed())
            self.send_reordered_offers(wraps=number % 5 == 4)
        self.ack_subscriptions(BOOT_S)
        return taken
