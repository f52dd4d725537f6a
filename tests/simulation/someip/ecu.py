# SPDX-License-Identifier: Apache-2.0
"""A simulated ECU: service discovery, events and calls over UDP and TCP. No product code.

It offers a service each second and subscribes the streamer's events with each Offer of the streamer. It answers each
call. A frozen ECU reads nothing while its kernel takes data. A killed one loses its sockets, a restarted one counts
its SD messages from 1 with the reboot flag. All code runs in timers of the scheduler, so it never blocks.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.simulation.scheduler import NS_PER_MS, NS_PER_S
from tests.simulation.someip.ip_network import IpAddress, SimIpHost, UdpSocket
from tests.simulation.someip.ip_sockets import StreamSplitter
from tests.simulation.someip.tcp_stream import TcpListener, TcpSocket
from tests.simulation.someip.wire import (
    ACK,
    EVENT,
    OFFER,
    REQUEST,
    RESPONSE,
    SD_SERVICE,
    SUBSCRIBE,
    TCP,
    UDP,
    WireEntry,
    WireHeader,
    decode_message,
    decode_sd,
    encode_message,
    encode_sd,
)

GROUP: Final = "224.244.224.245"
SD_PORT: Final = 30_490
OFFER_TTL_S: Final = 3
SUBSCRIBE_TTL_S: Final = 5
_USER_TIMEOUT_NS: Final = 20 * NS_PER_S
UDP_GROUP, TCP_GROUP = 1, 2
"""Event groups by their protocol, of the streamer's service and of the ECU's."""


class EcuConfig(NamedTuple):
    """What an ECU has. A service of 0 is none. Without `sd` the streamer knows it by its configuration."""

    ip: str
    port: int
    service: int
    """The service that it provides, at `port` over UDP and TCP."""
    wanted: int
    """The streamer's service whose events it receives."""
    streamer: IpAddress
    sd: bool = True


class Ecu:
    """An ECU. `on_message` gets each message that it has read."""

    def __init__(self, host: SimIpHost, config: EcuConfig, on_message: Callable[[WireHeader], None]) -> None:
        self.config = config
        self.host = host
        self.scheduler = host.network.scheduler
        self.on_message = on_message
        self.is_frozen = False
        self.is_running = False
        self.life = 0
        """The number of starts: timers of an earlier life do nothing."""
        self.stream_to_streamer: TcpSocket | None = None
        self.subscribed_until_ns: dict[tuple[int, str, int], int] = {}
        """The streamer's endpoints for events of the ECU, each with the end of its subscription."""
        self.killed_ns: list[int] = []
        self._sessions: dict[IpAddress, int] = {}
        self._event_session = 0
        self._data: UdpSocket | None = None
        self._sd: UdpSocket | None = None
        self._sd_group: UdpSocket | None = None
        self._listener: TcpListener | None = None
        self._streams: dict[TcpSocket, StreamSplitter] = {}
        self._paused: list[Callable[[], None]] = []
        """What the process does when it is thawed."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_running:
            return
        self.host.is_on = self.is_running = True
        self.life += 1
        self._sessions.clear()
        self._data = self._open((self.config.ip, self.config.port), self._on_data)
        self._listener = TcpListener(self.host, self.config.port)
        self._listener.on_ready = self._when_running(self._on_connection)
        if self.config.sd:
            self._sd = self._open((self.config.ip, SD_PORT), self._on_sd)
            self._sd_group = self._open((GROUP, SD_PORT), self._on_sd)
            self._sd_group.groups.add(GROUP)
            self._each_second(self._offer)
        else:
            self._each_second(self._connect)

    def _open(self, address: IpAddress, on_ready: Callable[[UdpSocket], None]) -> UdpSocket:
        opened = UdpSocket(self.host)
        opened.bind(address)
        opened.on_ready = self._when_running(lambda: on_ready(opened))
        return opened

    def _when_running(self, action: Callable[[], None]) -> Callable[[], None]:
        """Do the action at once, after a freeze, or never if the process has ended."""
        life = self.life

        def act() -> None:
            if self.life != life or not self.is_running:
                return
            if self.is_frozen:
                self._paused.append(act)
            else:
                action()

        return act

    def _each_second(self, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.scheduler.call_after(NS_PER_S, self._when_running(again))

        self.scheduler.call_after(10 * NS_PER_MS, self._when_running(again))

    def kill(self) -> None:
        """The process ends at once; its kernel closes the sockets, with a reset if data is unread."""
        if not self.is_running:
            return
        self.killed_ns.append(self.scheduler.now_ns)
        self._forget()
        for udp in (self._data, self._sd, self._sd_group):
            if udp is not None:
                udp.close()
        if self._listener is not None:
            self._listener.close()
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def cut_power(self) -> None:
        """The machine loses its power: no peer is informed."""
        if self.is_running:
            self.killed_ns.append(self.scheduler.now_ns)
            self._forget()
            self.host.cut_power()
            self._streams.clear()

    def _forget(self) -> None:
        self.is_running = self.is_frozen = False
        self._paused.clear()
        self.subscribed_until_ns.clear()
        self.stream_to_streamer = None

    def freeze(self) -> None:
        self.is_frozen = self.is_running

    def thaw(self) -> None:
        self.is_frozen = False
        paused, self._paused = self._paused, []
        for action in paused:
            action()

    # --- service discovery --------------------------------------------------------------------------------------------

    def _send_sd(self, entries: list[WireEntry], to: IpAddress) -> None:
        assert self._sd is not None
        number = self._sessions[to] = self._sessions.get(to, 0) + 1
        self._try_send(self._sd, encode_sd(entries, number, reboot=True), to)

    @staticmethod
    def _try_send(udp: UdpSocket, data: bytes, to: IpAddress) -> None:
        try:
            udp.send(data, to)
        except OSError:
            return  # as real ECUs: the next cycle tries again

    def _offer(self) -> None:
        endpoints = (UDP, self.config.ip, self.config.port), (TCP, self.config.ip, self.config.port)
        self._send_sd([WireEntry(OFFER, self.config.service, OFFER_TTL_S, 0, endpoints)], (GROUP, SD_PORT))

    def _on_sd(self, udp: UdpSocket) -> None:
        while udp.queue:
            datagram = udp.pop()
            if datagram.sender[0] == self.config.ip or decode_message(datagram.data).service != SD_SERVICE:
                continue
            for entry in decode_sd(datagram.data):
                if entry.kind == OFFER and entry.service == self.config.wanted and entry.ttl_s:
                    self._subscribe(datagram.sender)
                elif entry.kind == SUBSCRIBE and entry.service == self.config.service:
                    self._on_subscribe(entry, datagram.sender)

    def _subscribe(self, streamer: IpAddress) -> None:
        endpoint = UDP, self.config.ip, self.config.port
        entries = [WireEntry(SUBSCRIBE, self.config.wanted, SUBSCRIBE_TTL_S, UDP_GROUP, (endpoint,))]
        stream = self.stream_to_streamer
        if stream is not None and stream.established and not stream.is_over:
            endpoint = TCP, *stream.local
            entries.append(WireEntry(SUBSCRIBE, self.config.wanted, SUBSCRIBE_TTL_S, TCP_GROUP, (endpoint,)))
        else:
            self._connect()
        self._send_sd(entries, streamer)

    def _on_subscribe(self, entry: WireEntry, streamer: IpAddress) -> None:
        wanted = UDP if entry.last == UDP_GROUP else TCP
        for endpoint in entry.endpoints:
            if endpoint[0] != wanted:
                continue
            if entry.ttl_s:
                self.subscribed_until_ns[endpoint] = self.scheduler.now_ns + entry.ttl_s * NS_PER_S
            else:
                self.subscribed_until_ns.pop(endpoint, None)
        if entry.ttl_s:
            self._send_sd([entry._replace(kind=ACK, endpoints=())], streamer)

    # --- streams ------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Open the connection for events over TCP, if there is none."""
        if self.stream_to_streamer in self._streams:
            return
        self.stream_to_streamer = opened = TcpSocket(self.host)
        self._watch(opened)
        try:
            opened.connect(self.config.streamer)
        except OSError:
            self._drop(opened)

    def _on_connection(self) -> None:
        assert self._listener is not None
        while self._listener.waiting:
            self._watch(self._listener.accept())

    def _watch(self, stream: TcpSocket) -> None:
        self._streams[stream] = StreamSplitter()
        stream.keep_alive(NS_PER_S)
        stream.user_timeout_ns = _USER_TIMEOUT_NS
        stream.on_ready = self._when_running(lambda: self._on_stream(stream))

    def _drop(self, stream: TcpSocket) -> None:
        self._streams.pop(stream, None)
        stream.close()

    def _on_stream(self, stream: TcpSocket) -> None:
        splitter = self._streams.get(stream)
        if splitter is None:
            return
        while True:
            try:
                data = stream.read(4_096)
            except BlockingIOError:
                return
            except OSError:
                self._drop(stream)
                return
            if not data:
                if stream.established:
                    self._drop(stream)
                return
            for message in splitter.feed(data):
                self._on_bytes(message, stream, ("", 0))

    # --- data ---------------------------------------------------------------------------------------------------------

    def _on_data(self, udp: UdpSocket) -> None:
        while udp.queue or udp.error:
            try:
                datagram = udp.pop()
            except OSError:
                continue
            self._on_bytes(datagram.data, None, datagram.sender)

    def _on_bytes(self, data: bytes, stream: TcpSocket | None, sender: IpAddress) -> None:
        message = decode_message(data)
        self.on_message(message)
        if message.kind == REQUEST and message.service == self.config.service:
            response = encode_message(
                message.service, message.method, message.payload, RESPONSE, message.client, message.session
            )

            def answer() -> None:
                self._send(response, stream, sender)

            self.scheduler.call_after(NS_PER_MS, self._when_running(answer))

    def _send(self, data: bytes, stream: TcpSocket | None, to: IpAddress) -> bool:
        """Send a message; over TCP only if it fits as a whole. Returns whether the kernel took it."""
        try:
            if stream is None:
                assert self._data is not None
                self._data.send(data, to)
            elif stream.is_over or stream.room < len(data):
                return False
            else:
                stream.write(data)
        except OSError:
            return False
        return True

    def send_event(self, event: int, payload: bytes, protocol: int) -> bool:
        """Send an event to the streamer, if it has subscribed; returns whether the kernel took it."""
        if not self.is_running or self.is_frozen:
            return False
        self._event_session = self._event_session % 0xFFFF + 1
        data = encode_message(self.config.service, event, payload, EVENT, session=self._event_session)
        if not self.config.sd:
            return self._send(data, None, self.config.streamer)
        now_ns = self.scheduler.now_ns
        for (kind, host, port), until_ns in self.subscribed_until_ns.items():
            if kind == protocol and now_ns < until_ns:
                stream = self._stream_with((host, port)) if protocol == TCP else None
                if protocol == UDP or stream is not None:
                    return self._send(data, stream, (host, port))
        return False

    def _stream_with(self, address: IpAddress) -> TcpSocket | None:
        return next((each for each in self._streams if each.remote == address and not each.is_over), None)

    def call(self, service: int, method: int, payload: bytes, session: int) -> bool:
        """Call a method of the streamer's service over UDP; returns whether the kernel took it."""
        if not self.is_running or self.is_frozen:
            return False
        data = encode_message(service, method, payload, REQUEST, client=0x55, session=session)
        return self._send(data, None, self.config.streamer)
