# SPDX-License-Identifier: Apache-2.0
"""The kernel's side of TCP on the simulated IP network: streams of bytes, cut into segments at any place.

    write -> send buffer -> a segment -> receive buffer of the other kernel -> read
                            a cut: repeated with growing pauses, until the user timeout

An end that is closed with unread data, or gets data after its close, resets the connection. A frozen process reads
nothing: its kernel acknowledges until the receive buffer is full. The code runs in timers, too, so it never blocks.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Final

from tests.simulation.scheduler import NS_PER_MS, NS_PER_S
from tests.simulation.someip.ip_network import IpAddress, SimIpHost, error_of

RECEIVE_BYTES: Final = 60_000
SEND_BYTES: Final = 40_000
_MAX_SEGMENT: Final = 16_384
_FIRST_PAUSE_NS: Final = 200 * NS_PER_MS
_MAX_PAUSE_NS: Final = 3 * NS_PER_S
_MAX_SYNS: Final = 5
_KEEPALIVE_NS: Final = 10 * NS_PER_S


class TcpListener:
    """A listening socket."""

    def __init__(self, host: SimIpHost, port: int) -> None:
        if port in host.listeners:
            raise error_of(errno.EADDRINUSE)
        self.host = host
        self.port = port or host.free_port()
        self.waiting: deque[TcpSocket] = deque()
        self.on_ready: Callable[[], None] = lambda: None
        host.listeners[self.port] = self

    def accept(self) -> "TcpSocket":
        if not self.waiting:
            raise error_of(errno.EAGAIN)
        return self.waiting.popleft()

    def close(self) -> None:
        if self.host.listeners.get(self.port) is self:
            del self.host.listeners[self.port]
        while self.waiting:
            self.waiting.popleft().reset()


class TcpSocket:
    """One end of a connection. `on_ready` runs when its state changes."""

    def __init__(self, host: SimIpHost) -> None:
        self.host = host
        self.local: IpAddress = (host.ip, 0)
        self.remote: IpAddress = ("", 0)
        self.other: TcpSocket | None = None
        self.established = False
        self.error = 0
        """The errno of the end of the connection, until it is read."""
        self.acked = 0
        """Bytes that the other kernel has acknowledged; the SYN of the end that connects counts as one."""
        self.received = bytearray()
        self.arrivals: deque[tuple[int, int]] = deque()
        """Of unread bytes: the offset behind them in the stream, and the time of their arrival."""
        self.received_total = 0
        self.has_received_end = False
        self.user_timeout_ns = 120 * NS_PER_S
        self.keeps_alive = False
        self._probe_ns = _KEEPALIVE_NS
        self.on_ready: Callable[[], None] = lambda: None
        self._unsent = bytearray()
        self._in_flight = b""
        self._is_sending = False
        self._pause_ns = _FIRST_PAUSE_NS
        self._last_progress_ns = 0
        self._wants_end = self._end_sent = False
        self.is_closed = False
        """The process has closed it. The kernel may still send what it has."""

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        return max(0, SEND_BYTES - len(self._unsent) - len(self._in_flight))

    @property
    def is_readable(self) -> bool:
        return bool(self.received) or self.has_received_end or bool(self.error)

    @property
    def is_over(self) -> bool:
        """No connection any more, or none yet."""
        return self.other is None

    def _key(self) -> tuple[IpAddress, IpAddress]:
        return self.local, self.remote

    # --- connecting ---------------------------------------------------------------------------------------------------

    def connect(self, remote: IpAddress, port: int = 0) -> None:
        """Start to connect; `on_ready` runs at the end, with `established` or an error."""
        self.host.check_sending()
        self.local, self.remote = (self.host.ip, port or self.host.free_port()), remote
        self.host.streams[self._key()] = self
        self._send_syn(0)

    def _send_syn(self, tries: int) -> None:
        if self.is_closed or self.established or self.error:
            return
        if tries == _MAX_SYNS:
            self._fail(errno.ETIMEDOUT)
            return
        network = self.host.network
        if network.is_path_open(self.host.ip, self.remote[0]):
            network.scheduler.call_after(network.latency_ns(), lambda: self._on_syn(tries))
        else:
            network.scheduler.call_after(NS_PER_S << tries, lambda: self._send_syn(tries + 1))

    def _on_syn(self, tries: int) -> None:
        network = self.host.network
        if not network.is_path_open(self.host.ip, self.remote[0]):
            network.scheduler.call_after(NS_PER_S << tries, lambda: self._send_syn(tries + 1))
            return
        if self.is_closed:
            return
        listener = network.hosts[self.remote[0]].listeners.get(self.remote[1])
        if listener is None:
            network.scheduler.call_after(network.latency_ns(), lambda: self._fail(errno.ECONNREFUSED))
            return
        accepted = TcpSocket(listener.host)
        accepted.local, accepted.remote, accepted.other = self.remote, self.local, self
        accepted.host.streams[accepted._key()] = accepted
        self.other = accepted
        self.acked = 1
        for each in accepted, self:
            each.established = True
            each._last_progress_ns = network.scheduler.now_ns
        network.scheduler.call_after(network.latency_ns(), self.on_ready_now)
        listener.waiting.append(accepted)
        listener.on_ready()

    def on_ready_now(self) -> None:
        self.on_ready()

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> int:
        """The number of bytes that the kernel takes. Raises OSError, EAGAIN if there is no room."""
        if self.error:
            code, self.error = self.error, 0
            raise error_of(code)
        if self.is_over or self._wants_end:
            raise error_of(errno.EPIPE)
        taken = min(self.room, len(data))
        if not taken:
            raise error_of(errno.EAGAIN)
        if not self._unsent and not self._in_flight:
            self._last_progress_ns = self.host.network.scheduler.now_ns
        self._unsent += data[:taken]
        self._pump()
        return taken

    def shut_down(self) -> None:
        """No more data follows."""
        if self.is_over:
            raise error_of(errno.ENOTCONN)
        self._wants_end = True
        self._pump()

    def _pump(self) -> None:
        """Send the next segment, if none is on its way."""
        if self._is_sending or self.other is None:
            return
        network = self.host.network
        if not self._in_flight and self._unsent:
            window = RECEIVE_BYTES - len(self.other.received)
            if window <= 0:
                return  # a read of the other end pumps again
            size = min(window, len(self._unsent), _MAX_SEGMENT)
            if network.rng.random() < 0.5:
                size = network.rng.randint(1, size)
            self._in_flight = bytes(self._unsent[:size])
            del self._unsent[:size]
        elif not self._in_flight and (not self._wants_end or self._end_sent):
            return
        self._is_sending = True
        if network.is_path_open(self.host.ip, self.remote[0]) and not self.host.refusal:
            network.scheduler.call_after(network.latency_ns(), self._on_segment)
        else:
            self._pause(self._send_again)

    def _send_again(self) -> None:
        self._is_sending = False
        self._pump()

    def _pause(self, again: Callable[[], None]) -> None:
        """Wait, then send again what was lost."""
        scheduler = self.host.network.scheduler
        if scheduler.now_ns - self._last_progress_ns > self.user_timeout_ns:
            self._fail(errno.ETIMEDOUT)
            return
        scheduler.call_after(self._pause_ns, again)
        self._pause_ns = min(2 * self._pause_ns, _MAX_PAUSE_NS)

    def _on_segment(self) -> None:
        """The segment arrives at the other host, unless the cable was cut meanwhile."""
        network = self.host.network
        if self.other is None:
            return
        if not network.is_path_open(self.host.ip, self.remote[0]):
            self._pause(self._send_again)
            return
        peer = network.hosts[self.remote[0]].streams.get((self.remote, self.local))
        if peer is not self.other or (peer.is_closed and self._in_flight):
            if peer is not None:
                peer.reset()
            network.scheduler.call_after(network.latency_ns(), lambda: self._fail(errno.ECONNRESET))
            return
        if self._in_flight:
            peer.take(self._in_flight)
        elif not self._unsent:
            self._end_sent = True
            peer.on_end()
        network.scheduler.call_after(network.latency_ns(), self._on_ack)

    def _on_ack(self) -> None:
        network = self.host.network
        if self.other is None:
            return
        if not network.is_path_open(self.host.ip, self.remote[0]):
            self._pause(
                self._on_ack
            )  # the acknowledgement is lost: the segment is sent again, and acknowledged
            return
        self.acked += len(self._in_flight)
        self._in_flight = b""
        self._is_sending = False
        self._pause_ns = _FIRST_PAUSE_NS
        self._last_progress_ns = network.scheduler.now_ns
        self._pump()
        self.on_ready()
        self._forget_if_done()

    # --- reading ------------------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        self.received += data
        self.received_total += len(data)
        self.arrivals.append((self.received_total, self.host.network.scheduler.now_ns))
        self.on_ready()

    def on_end(self) -> None:
        self.has_received_end = True
        self.on_ready()
        self._forget_if_done()

    def read(self, size: int) -> bytes:
        """Bytes of the stream; none at its end. Raises OSError, EAGAIN if nothing has arrived."""
        if self.received:
            data = bytes(self.received[:size])
            del self.received[: len(data)]
            read_total = self.received_total - len(self.received)
            while self.arrivals and self.arrivals[0][0] <= read_total:
                self.arrivals.popleft()
            if self.other is not None:
                self.other._pump()  # there is room again
            return data
        if self.error:
            code, self.error = self.error, 0
            raise error_of(code)
        if self.has_received_end or self.is_over:
            return b""
        raise error_of(errno.EAGAIN)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def keep_alive(self, every_ns: int = _KEEPALIVE_NS) -> None:
        """Find out that the other host is gone, though nothing is sent (SO_KEEPALIVE)."""
        if not self.keeps_alive:
            self.keeps_alive, self._probe_ns = True, every_ns
            self._probe(self.host.network.scheduler.now_ns)

    def _probe(self, heard_ns: int) -> None:
        network = self.host.network
        if self.is_closed or (self.other is None and self.established):
            return
        if not self.established:
            heard_ns = network.scheduler.now_ns
        elif network.is_path_open(self.host.ip, self.remote[0]):
            heard_ns = network.scheduler.now_ns
            if network.hosts[self.remote[0]].streams.get((self.remote, self.local)) is not self.other:
                self._fail(errno.ECONNRESET)
                return
        elif network.scheduler.now_ns - heard_ns > self._probe_ns + self.user_timeout_ns:
            self._fail(errno.ETIMEDOUT)
            return
        network.scheduler.call_after(self._probe_ns, lambda: self._probe(heard_ns))

    def _fail(self, code: int) -> None:
        """The connection is over, or was never made."""
        if self.is_over and self.established:
            return
        self.vanish()
        if not self.is_closed:
            self.error = code
            self.on_ready()

    def vanish(self) -> None:
        """Forget the connection without a segment."""
        self.other = None
        self._unsent.clear()
        self._in_flight = b""
        self.host.streams.pop(self._key(), None)

    def reset(self) -> None:
        """Close, and let the other end get a reset."""
        other, network = self.other, self.host.network
        self.is_closed = True
        self.vanish()
        if other is not None and network.is_path_open(self.host.ip, self.remote[0]):
            network.scheduler.call_after(
                network.latency_ns(),
                lambda: other._fail(errno.ECONNRESET),
            )

    def close(self) -> None:
        """The process closes it, or ends. The kernel sends what it has taken."""
        self.on_ready = lambda: None
        if self.received:
            self.reset()
            return
        self.is_closed = True
        self._wants_end = True
        if self.other is None:
            self.vanish()
        else:
            self._pump()
            self._forget_if_done()

    def _forget_if_done(self) -> None:
        if self.is_closed and self._end_sent and self.has_received_end:
            self.vanish()
