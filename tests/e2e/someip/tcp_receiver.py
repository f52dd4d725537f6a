# SPDX-License-Identifier: Apache-2.0
"""A receiver of SOME/IP events over TCP in its own process, which a test can stop and kill.

    python -m tests.e2e.someip.tcp_receiver PORT

It connects to PORT on loopback and retries until a server listens. Output: READY, then the first four bytes of each
event's payload as a number, one line each. It shares no code with the streamer.
"""

import os
import socket
import sys
import time


def main() -> None:
    connection = _connected(int(sys.argv[1]))
    os.write(1, b"READY\n")
    data = b""
    while piece := connection.recv(7_001):  # a size that rarely ends at a message boundary
        data += piece
        while len(data) >= 16 and len(data) >= 8 + (length := int.from_bytes(data[4:8], "big")):
            os.write(1, b"%d\n" % int.from_bytes(data[16:20], "big"))
            data = data[8 + length :]


def _connected(port: int) -> socket.socket:
    while True:
        connection = socket.socket()
        # Smaller than the unacked window of the streamer, as on an ECU.
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
