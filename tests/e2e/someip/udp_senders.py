# SPDX-License-Identifier: Apache-2.0
"""ECUs on loopback that send events by UDP, as a process: as fast as the kernel takes them, or one of them does.

    python -m tests.e2e.someip.udp_senders equal DATAGRAMS PORT ECU_PORT...
    python -m tests.e2e.someip.udp_senders loud MILLISECONDS PORT ECU_PORT...

PORT is that of the streamer. Each ECU has one service, `FIRST_SERVICE` plus its place, and sends its event 0x8001
from ECU_PORT. `equal`: the ECUs send in turn. `loud`: each sends an event per ms, and the first one as many as fit in
between. The process prints one line of JSON: the number of datagrams of each ECU.
"""

import json
import socket
import sys
import time
from typing import Final

from tests.e2e.rigs import wire

FIRST_SERVICE: Final = 0x2000
_PAYLOAD: Final = bytes(64)
_MS: Final = 0.001


def send_in_turn(datagrams: int, sends: list[socket.socket], events: list[bytes]) -> list[int]:
    pairs = list(zip([each.send for each in sends], events, strict=True))
    for _ in range(datagrams // len(pairs)):
        for send, event in pairs:
            send(event)
    return [datagrams // len(pairs)] * len(pairs)


def send_loudly(milliseconds: int, sends: list[socket.socket], events: list[bytes]) -> list[int]:
    loud, sent = sends[0].send, [0] * len(sends)
    due = time.monotonic()
    for _ in range(milliseconds):
        for number, each in enumerate(sends):
            each.send(events[number])
            sent[number] += 1
        due += _MS
        while time.monotonic() < due:
            loud(events[0])
            sent[0] += 1
    return sent


def main(how: str, count: int, port: int, *ecu_ports: int) -> None:
    sends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in ecu_ports]
    for each, ecu_port in zip(sends, ecu_ports, strict=True):
        each.bind(("127.0.0.1", ecu_port))
        each.connect(("127.0.0.1", port))
    events = [wire.event(FIRST_SERVICE + number, 0x8001, _PAYLOAD) for number in range(len(sends))]
    send = {"equal": send_in_turn, "loud": send_loudly}[how]
    print(json.dumps(send(count, sends, events)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
