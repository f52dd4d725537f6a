# SPDX-License-Identifier: Apache-2.0
"""A subscriber or a router as a process that can be killed.

    python -m tests.e2e.delivery.zenoh_process client PORT [HOST]    writes the payload of each event as a line
    python -m tests.e2e.delivery.zenoh_process router PORT [HOST]
    python -m tests.e2e.delivery.zenoh_process patient-router PORT [HOST]    its puts wait longer than by default

The first line is READY.
"""

import json
import os
import signal
import sys

import zenoh

from tests.e2e.rigs.entities import wait_declared


def main() -> None:
    role, port, *rest = sys.argv[1:]
    mode = role.removeprefix("patient-")
    host = rest[0] if rest else "127.0.0.1"
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    endpoint_key = "listen" if mode == "router" else "connect"
    config.insert_json5(f"{endpoint_key}/endpoints", json.dumps([f"tcp/{host}:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/delay", "0")
    # A client that starts without its network keeps trying.
    config.insert_json5("connect/timeout_ms", "-1")
    if mode != role:
        config.insert_json5("transport/link/tx/queue/congestion_control/block/wait_before_close", "15000000")
    session = zenoh.open(config)
    if mode == "client":
        # Direct: what waits in the queue of an indirect callback is lost if the process is killed.
        callback = zenoh.handlers.Callback(write_payload, indirect=False)
        session.declare_subscriber("up/*/*/*/1/*/{}/{}/{}/{}/{}", callback)
        wait_declared(session)
    os.write(1, b"READY\n")
    signal.sigwait({signal.SIGTERM})
    session.close()  # type: ignore[no-untyped-call]


def write_payload(sample: zenoh.Sample) -> None:
    os.write(1, sample.payload.to_bytes().strip() + b"\n")  # at once: a buffer is lost with the process


if __name__ == "__main__":
    main()
