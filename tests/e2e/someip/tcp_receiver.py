# SPDX-License-Identifier: Apache-2.0
"""A receiver of SOME/IP events over TCP in a process of its own, which can be stopped and killed as no thread can.

    python -m tests.e2e.someip.tcp_receiver PORT

It connects to PORT on loopback until somebody listens, and writes the first four bytes of each event's payload as a number, a line
for each, at once. The first line is READY. It knows the wire and nothing of the streamer.
"""

import os
import socket
import sys
import time


def main() -> None:
    connection = _connected(int(sys.argv[1]))
    os.write(1, b"READY\n")
    data = b""
    while piece := connection.recv(7_001):  # seldom where a message ends
        data += piece
        while len(data) >= 16 and len(data) >= 8 + (length := int.from_bytes(data[4:8], "big")):
            os.write(1, b"%d\n" % int.from_bytes(data[16:20], "big"))
            data = data[8 + length :]


def _connected(port: int) -> socket.socket:
    while True:
        connection = socket.socket()
        # Less than the streamer remembers, as an ECU has it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        try:
            connection.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            connection.close()
            time.sleep(0.01)
        else:
            return connection


if __name__ == "__main__":
    main()
