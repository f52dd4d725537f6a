# SPDX-License-Identifier: Apache-2.0
"""The bare forwarders: the shortest Python that does the same transport work, without routing.

    python -m benchmarks.traffic.bare_forwarders udp-to-zenoh ZENOH_PORT UDP_PORT
    python -m benchmarks.traffic.bare_forwarders zenoh-to-udp ZENOH_PORT UDP_PORT SINK_PORT
    python -m benchmarks.traffic.bare_forwarders zenoh-to-zenoh ZENOH_PORT OTHER_ZENOH_PORT

They end when their stdin closes.
"""

import sys

from zenoh.handlers import FifoChannel

from benchmarks.traffic import sockets, wire

_CHANNEL = 1_024


def udp_to_zenoh(zenoh_port: int, udp_port: int) -> None:
    """Put every datagram unchanged to one key, with a constant attachment."""
    source = sockets.udp_socket(udp_port)
    session = sockets.zenoh_peer(zenoh_port)
    recv, put = source.recv, sockets.blocking_publisher(session, wire.publish_key(wire.ECU_TOPIC)).put
    attachment = wire.attachment_head(0, 0) + wire.publish_tail(wire.ECU_TOPIC)
    sockets.print_ready()
    while True:
        put(recv(2_048), attachment=attachment)


def zenoh_to_udp(zenoh_port: int, udp_port: int, sink_port: int) -> None:
    """Send every payload unchanged to one socket."""
    send = sockets.udp_socket(udp_port, sink_port).send
    session = sockets.zenoh_peer(zenoh_port)
    subscriber = session.declare_subscriber(wire.publish_key(wire.APP_TOPIC), FifoChannel(_CHANNEL))
    recv, try_recv = subscriber.recv, subscriber.try_recv
    sockets.print_ready()
    while True:
        send(recv().payload.to_bytes())
        while (sample := try_recv()) is not None:
            send(sample.payload.to_bytes())


def zenoh_to_zenoh(zenoh_port: int, other_port: int) -> None:
    """Put every sample unchanged to the same key of another network."""
    source, target = sockets.zenoh_peer(zenoh_port), sockets.zenoh_peer(other_port)
    key = wire.publish_key(wire.APP_TOPIC)
    put = sockets.blocking_publisher(target, key).put
    subscriber = source.declare_subscriber(key, FifoChannel(_CHANNEL))
    recv, try_recv = subscriber.recv, subscriber.try_recv
    sockets.print_ready()
    while True:
        sample = recv()
        put(sample.payload, attachment=sample.attachment)
        while (following := try_recv()) is not None:
            put(following.payload, attachment=following.attachment)


if __name__ == "__main__":
    sockets.exit_with_parent()
    match sys.argv[1:]:
        case ["udp-to-zenoh", zenoh, udp]:
            udp_to_zenoh(int(zenoh), int(udp))
        case ["zenoh-to-udp", zenoh, udp, sink]:
            zenoh_to_udp(int(zenoh), int(udp), int(sink))
        case ["zenoh-to-zenoh", zenoh, other]:
            zenoh_to_zenoh(int(zenoh), int(other))
        case _:
            sys.exit(f"{sys.argv[1:]}: expected udp-to-zenoh, zenoh-to-udp or zenoh-to-zenoh, and ports")
