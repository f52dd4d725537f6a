# SPDX-License-Identifier: Apache-2.0
"""Defects of our own in the SOME/IP transport, which SOME/IP stories must find: by seeds, or the known stories.

python -m tests.simulation.mutations --someip --seeds 200
"""

from typing import Final, NamedTuple

_SOMEIP: Final = "ustreamer/transports/someip"


class Mutation(NamedTuple):
    """A change of one place: `old` becomes `new`."""

    name: str
    path: str
    old: str
    new: str


SOMEIP_MUTATIONS: Final = (
    Mutation(
        "acknowledged messages stay at the connection before a restart",
        f"{_SOMEIP}/protocol/unacked_window.py",
        "for each in (*recent, *self._sent) if each.peer is peer]",
        "for each in self._sent if each.peer is peer]",
    ),
    Mutation(
        "a connection with messages that are sent again is closed in order",
        f"{_SOMEIP}/io/tcp_connection.py",
        "            close_with_reset(self.socket)",
        "            self.socket.close()",
    ),
    Mutation(
        "datagrams that the kernel dropped are not counted",
        f"{_SOMEIP}/io/udp.py",
        "    return int(_MEMINFO.unpack(info)[_DROPS]) if",
        "    return 0 if",
    ),
    Mutation(
        "drops of sockets for one sender are not counted",
        f"{_SOMEIP}/endpoint/transport.py",
        "return own + self._peer_sockets.dropped + self._groups.dropped",
        "return own + self._groups.dropped",
    ),
    Mutation(
        "the last datagram of a batch is left out",
        f"{_SOMEIP}/io/recvmmsg.py",
        "        self.sizes = self._lengths[:number].tolist()",
        "        self.sizes = self._lengths[: max(1, number - 1)].tolist()",
    ),
    Mutation(
        "a refused batch counts as sent",
        f"{_SOMEIP}/io/gso_sender.py",
        "                if error.errno not in _GSO_UNSUPPORTED:\n                    return 0",
        "                if error.errno not in _GSO_UNSUPPORTED:\n                    return len(datagrams)",
    ),
    Mutation(
        "a refused datagram counts as sent",
        f"{_SOMEIP}/io/gso_sender.py",
        "                return self._count(number, len(datagram))",
        "                return self._count(number + 1, len(datagram))",
    ),
    Mutation(
        "unacknowledged messages are not sent again",
        f"{_SOMEIP}/protocol/unacked_window.py",
        "else self._recently_acked), *self._sent]",
        "else self._recently_acked)]",
    ),
    Mutation(
        "messages that a killed peer may not have read are not sent again",
        f"{_SOMEIP}/protocol/unacked_window.py",
        "                recent.append(sent_message)",
        "                pass",
    ),
    Mutation(
        "messages to send again change their order",
        f"{_SOMEIP}/io/tcp_peers.py",
        "peer.unsent.appendleft(sent_message)  # before",
        "peer.unsent.append(sent_message)  # before",
    ),
    Mutation(
        "messages without a next connection are not counted",
        f"{_SOMEIP}/io/tcp_peers.py",
        "                else:\n                    self.dropped += 1\n            for peer",
        "            for peer",
    ),
    Mutation(
        "the rest of a message in part is lost",
        f"{_SOMEIP}/io/tcp_connection.py",
        "            self.partial_write = memoryview(data)[taken:]",
        "            self.partial_write = memoryview(data)[taken + 1 :]",
    ),
    Mutation(
        "a renewed subscription of an ECU ends at its first ttl",
        f"{_SOMEIP}/sd/server.py",
        "            self._actions.deadlines.schedule(due, subscriber.received_ns + entry.ttl * NS_PER_S)",
        "            self._actions.deadlines.schedule_earlier(due, subscriber.received_ns + entry.ttl * NS_PER_S)",
    ),
    Mutation(
        "open calls are not answered at a stop",
        f"{_SOMEIP}/endpoint/transport.py",
        "        for response in self._exchange.abort_calls():\n            self._inbound.deliver(response)",
        "        self._exchange.abort_calls()",
    ),
    Mutation(
        "an expired call is not answered",
        f"{_SOMEIP}/endpoint/transport.py",
        "        for response in responses:\n            self._inbound.deliver(response)\n        for each",
        "        for each",
    ),
    Mutation(
        "a link that returns is not noticed",
        f"{_SOMEIP}/discovery/sd_driver.py",
        "            self._execute_all(self._discovery.link_up(self._clock.monotonic_ns()))",
        "            pass",
    ),
    Mutation(
        "a connection that failed is not tried again",
        f"{_SOMEIP}/io/tcp_connections.py",
        "        self._deadlines.schedule(peer, self._monotonic_ns() + pause_ns)",
        "        pass",
    ),
)
