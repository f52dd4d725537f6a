# SPDX-License-Identifier: Apache-2.0
"""Receipts for a sender that reads nothing: they are lost, and the ids of messages still get on disk."""

import signal
import subprocess
import sys
import time
from typing import Final

from tests.transports.zenoh.sessions import CLOCK, free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.testing.durable_contract import RecordedReceivedStore
from ustreamer.transports.zenoh.receipts.receipt_giver import ReceiptGiver
from ustreamer.transports.zenoh.receipts.receipt_keys import ID_BYTES, ReceiptGiverId

_ROUNDS: Final = 20
_IDS: Final = 4_096
"""In a round: 70 kB, so that a few rounds fill the buffers of both kernels."""
_PUT_WAIT_S: Final = 5.0
"""So long a put with congestion control BLOCK waits for room. Then Zenoh closes the link."""
_READER: Final = """
import time, zenoh
from ustreamer.transports.zenoh.receipts.receipt_keys import EVERY_RECEIPT
config = zenoh.Config()
config.insert_json5("connect/endpoints", '["{here}"]')
config.insert_json5("scouting/multicast/enabled", "false")
config.insert_json5("transport/shared_memory/enabled", "false")  # large payloads would not go through the socket
session = zenoh.open(config)
session.declare_subscriber(EVERY_RECEIPT, lambda _: None)
print("READY", flush=True)
time.sleep(60)
"""


class _Store(RecordedReceivedStore):
    """Counts ids. All messages are safe at once."""

    def __init__(self) -> None:
        super().__init__()
        self.safe_ns = 1 << 62
        self.count = 0

    def add(self, ids: bytes) -> None:
        self.count += len(ids) // ID_BYTES


def test_ids_are_on_disk_in_time_while_a_frozen_sender_reads_no_receipts() -> None:
    here = f"{free_locator()}#so_rcvbuf=65536;so_sndbuf=65536"
    command = [sys.executable, "-c", _READER.format(here=here)]
    with (
        plain_session(listen=[here]) as session,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader,
    ):
        giver, store = ReceiptGiver(ReceiptGiverId("cloud", "link", "1"), CLOCK.monotonic_ns), _Store()
        giver.store = store
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "READY\n"
            giver.start(session)
            publisher = giver._publisher
            assert publisher is not None
            wait_until(lambda: publisher.matching_status.matching, "the subscriber of receipts")  # type: ignore[attr-defined]
            reader.send_signal(signal.SIGSTOP)
            ids, longest_s = bytes(ID_BYTES * _IDS), 0.0
            for each in range(1, _ROUNDS + 1):
                begin = time.monotonic()
                giver.record(ids)
                wait_until(lambda each=each: store.count == each * _IDS, "the ids to be on disk")  # type: ignore[misc]
                longest_s = max(longest_s, time.monotonic() - begin)
            assert longest_s < _PUT_WAIT_S / 2
        finally:
            reader.kill()
            giver.close()
