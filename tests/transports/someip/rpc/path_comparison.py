# SPDX-License-Identifier: Apache-2.0
"""The rig of the fast path tests: an exchange on the readable path (the oracle) next to one on the fast path."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ustreamer.core.base.clock import ManualClock
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, decode, encode, split
from ustreamer.transports.someip.protocol.tp_config import TpSegmentation
from ustreamer.transports.someip.rpc.exchange import Exchange, RefusedMessage
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage, error_response, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

ECU: Address = ("127.0.0.1", 30502)
CLIENTS: list[Address] = [("127.0.0.1", 41000), ("127.0.0.1", 41001), ("127.0.0.9", 41000)]
UNKNOWN_SENDER: Address = ("127.0.0.2", 30502)
CALLERS = [UUri.parse("//device1/3AB/1/0"), UUri.parse("//device1/103AB/1/0"), UUri.parse("//device2/7/1/0")]
METHODS = [
    UUri.parse(each)
    for each in (
        "//chassis/CD/4/1",
        "//chassis/CD/4/2",  # no response expected
        "//chassis/CD/4/3",  # in segments
        "//chassis/CE/1/1",  # over TCP
        "//chassis/CD/4/9",  # unknown method
        "//chassis/EE/4/1",  # unknown service
    )
]
KINDS = [1, {"id": 2, "no_return": True}, {"id": 3, "tp": True}]
SERVICES = [
    {"service": 0x00CD, "major": 4, "methods": KINDS, "remote": "127.0.0.1:30502"},
    {"service": 0x00CE, "major": 1, "methods": [1], "remote": "127.0.0.1:30503", "protocol": "tcp"},
    {"service": 0x0777, "major": 2, "methods": KINDS, "offered": True, "provider": "//hpc.vin1/9077/1/0"},
]
BASE = {
    "transport": "someip",
    "authorities": ["chassis"],
    "bind": "127.0.0.1",
    "port": 30500,
    "clients": ["127.0.0.1", "127.0.0.9"],
    "services": SERVICES,
}
Sent = tuple[bytes, Address, TpSegmentation | None]


class SlowSide:
    """The oracle: an exchange that uses the readable path for each message."""

    def __init__(self, time: ManualClock, **keys: Any) -> None:
        clock = time.clock()
        self.exchange = Exchange(msgspec.convert(BASE | keys, SomeipEndpoint), "hpc.vin1", clock)
        self.sent: list[Sent] = []
        self.errors: list[UCode] = []
        self.received: list[UMessage] = []
        self.refused: list[RefusedMessage] = []
        self.request_ids: list[UUID] = []
        self.expired: list[tuple[UAttributes, bytes] | tuple[bytes, Address]] = []

    # As in `SomeipTransport`.

    def send(self, message: UMessage) -> None:
        message.check(strict=False)
        if message.attributes.type is UMessageType.REQUEST:
            out = self.exchange.open_call(message)
            self.sent.append((out.datagram, out.address, out.segmentation))
            self.exchange.on_sent(out)
            return
        answer = self.exchange.build_reply(message)
        if answer is not None:
            self.sent.append(answer)
            self.exchange.on_response_sent(message)

    def on_datagram(self, datagram: bytes, address: Address) -> None:
        for each in split(datagram)[0]:
            outcome = self.exchange.decode_message(each, address)
            if isinstance(outcome, UMessage):
                self.on_message(outcome)
            elif outcome is not None:
                self.refused.append(outcome)

    def on_message(self, message: UMessage) -> None:
        message.check(strict=True)
        self.received.append(message)
        if message.attributes.type is UMessageType.REQUEST:
            self.request_ids.append(message.id)

    def expire(self) -> None:
        responses, datagrams = self.exchange.expire_requests()
        self.expired += [(each.attributes, each.payload) for each in responses]
        self.expired += datagrams

    def transmit(self, messages: Sequence[UMessage]) -> None:
        for each in messages:
            try:
                self.send(each)
            except UStatusError as error:
                self.errors.append(error.code)

    # The comparable state: ids of received messages are random.

    def snapshot(self) -> object:
        delivered = [(each.attributes, each.payload) for each in self.received]
        deadline_ns = self.exchange.next_deadline_ns
        return (
            self.sent,
            self.errors,
            delivered,
            self.refused,
            self.expired,
            self.exchange.statistics(),
            deadline_ns,
        )


class FastSide(SlowSide):
    """The same exchange through the fast path, with batches."""

    def __init__(self, time: ManualClock, **keys: Any) -> None:
        super().__init__(time, **keys)
        self.wakes: list[int] = []
        self.room = 1 << 30  # datagrams that the kernel accepts
        self.during_send: Callable[[], object] = lambda: None
        """What another thread does meanwhile."""
        self.pending = self.exchange._pending
        self.is_for_discovery: Callable[[UMessage], bool] = lambda _: False
        self.others = 0
        self.fast_out = self.exchange.fast_out(
            self._send_equal_sized,
            self._send_slow_path,
            self.wakes.append,
            self._check_discovery,
        )

    def _check_discovery(self, message: UMessage) -> bool:
        return self.is_for_discovery(message)

    def _send_equal_sized(self, datagrams: Sequence[bytes], address: Address) -> int:
        assert 0 < len(datagrams) <= 64
        assert len({len(each) for each in datagrams}) == 1
        assert not self.pending.lock.locked()  # the receiving thread would wait for it
        self.during_send()
        taken = min(len(datagrams), self.room)
        self.room -= taken
        self.sent += [(each, address, None) for each in datagrams[:taken]]
        return taken

    def _send_slow_path(self, message: UMessage) -> None:
        self.others += 1
        self.send(message)

    def transmit(self, messages: Sequence[UMessage]) -> None:
        """As an egress queue: one batch, then the rejected messages one by one."""
        taken = self.fast_out.transmit_batch(iter(messages))
        for each in messages[taken:]:
            try:
                self.fast_out.transmit(each)
            except UStatusError as error:
                self.errors.append(error.code)

    def on_datagram(self, datagram: bytes, address: Address) -> None:
        before = self.exchange.statistics()
        message = self.exchange.fast_in.decode_message(datagram, address)
        if message is None:
            assert self.exchange.statistics() == before
            super().on_datagram(datagram, address)
        else:
            self.on_message(message)


class PathComparison:
    """Both sides, with the same input."""

    def __init__(self, **keys: Any) -> None:
        self.time = ManualClock()
        self.slow, self.fast = SlowSide(self.time, **keys), FastSide(self.time, **keys)
        self.sides = self.slow, self.fast
        self.ids = UuidSource(self.time.clock().wall_ms)

    def call(self, *calls: tuple[int, int, int, int]) -> None:
        """Calls by caller, method, rest of the ttl of 100 ms, and payload size."""
        now_ms = self.time.clock().wall_ms()
        messages = []
        for caller, method, left_ms, size in calls:
            id = self.ids.next()
            id = UUID((now_ms + left_ms - 100) << 16 | id.msb & 0xFFFF, id.lsb)
            messages.append(request(id, CALLERS[caller], METHODS[method], bytes(size), ttl=100))
        for side in self.sides:
            side.transmit(messages)

    def on_datagram(self, datagram: bytes, address: Address) -> None:
        for side in self.sides:
            side.on_datagram(datagram, address)

    def answer(self, number: int, address: Address, **fields: Any) -> None:
        """The ECU responds to a sent call; `number` counts from the last one."""
        sent = [each for each, to, _ in self.slow.sent if to == ECU]
        if sent:
            asked = decode(sent[-1 - number % len(sent)])[0]
            kind = {"message_type": MessageType.RESPONSE, "payload": b"ok"}
            self.on_datagram(encode(msgspec.structs.replace(asked, **(kind | fields))), address)

    def respond(self, *answers: tuple[int, UCode | None, int]) -> None:
        """Applications respond to requests of clients: number counted from the last one, status, payload size."""
        for side in self.sides:
            messages = []
            for number, code, size in answers:
                asked = self.asked(side, number)
                if code is None or code is UCode.OK:
                    made = response(self.ids.next(), asked, bytes(size))
                    attributes = msgspec.structs.replace(made.attributes, commstatus=code)
                    messages.append(UMessage(made.id, attributes, made.payload))
                else:
                    messages.append(error_response(self.ids.next(), asked, UStatus(code, "no")))
            side.transmit(messages)

    def asked(self, side: SlowSide, number: int) -> UMessage:
        known = side.request_ids
        id = known[-1 - number % len(known)] if known and number < 8 else UUID(0x7000, 1 << 63)
        return request(id, UUri.parse("//chassis/12/1/0"), UUri.parse("//hpc.vin1/9077/1/1"), ttl=100)

    def wait(self, ms: int) -> None:
        self.time.advance(ms=ms)
        for side in self.sides:
            side.expire()

    def check(self) -> None:
        assert self.fast.snapshot() == self.slow.snapshot()


def asking(**fields: Any) -> SomeIpMessage:
    return msgspec.structs.replace(SomeIpMessage(0x0777, 1, 0x12, 9, 2, 0, 0, b"go"), **fields)
