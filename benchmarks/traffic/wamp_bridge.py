# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP receiver that publishes each event into a WAMP router: without a streamer, a vehicle needs one.

    python -m benchmarks.traffic.wamp_bridge WAMP_PORT UDP_PORT TOPIC

The client has no library, so that the bridge is not slower than it must be. The events have the arguments of those of
the streamer.
"""

import json
import sys
import uuid
from base64 import b64encode
from typing import Final

from benchmarks.traffic import sockets, wire
from benchmarks.traffic.wamp_clients import WampClient, text_frame

_PUBLISH: Final = 16
_MAX_DATAGRAM: Final = 65_536
_ARGUMENTS: Final = {
    "source": f"//{wire.ECU}/{wire.SERVICE:X}/{wire.MAJOR:X}/{wire.EVENT:X}",
    "type": "publish",
    "priority": "CS1",
    "format": "RAW",
}


def main(wamp_port: str, udp_port: str, topic: str) -> None:
    client = WampClient(int(wamp_port), publisher=True)
    receiving = sockets.udp_socket(int(udp_port))
    sockets.exit_with_parent()
    sockets.print_ready()
    number = 0
    while True:
        number += 1
        client.send_bytes(text_frame(_publish(number, topic, receiving.recv(_MAX_DATAGRAM))))


def _publish(number: int, topic: str, datagram: bytes) -> bytes:
    """The PUBLISH of a notification."""
    _, _, size, *_ = wire.SOMEIP_HEADER.unpack_from(datagram)
    if size + 8 != len(datagram):
        raise ValueError(f"a datagram of {len(datagram)} bytes: expected {size + 8}")
    payload = "\0" + b64encode(datagram[wire.SOMEIP_HEADER.size :]).decode("ascii")
    arguments = {"id": str(uuid.uuid4()), **_ARGUMENTS}
    return json.dumps([_PUBLISH, number, {}, topic, [payload], arguments]).encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
