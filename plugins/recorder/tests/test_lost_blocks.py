# SPDX-License-Identifier: Apache-2.0
"""Counting of events in blocks that could not be written."""

from ustreamer_recorder.encoder import SegmentEncoder
from ustreamer_recorder.events import Gap, Letter, Row, SubscriptionChange, Target
from ustreamer_recorder.layout import GapCause, SegmentHeader
from ustreamer_recorder.lost_blocks import count_lost
from ustreamer_recorder.note_queue import Skipped

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID


def test_every_event_of_a_lost_block_is_counted_with_its_times() -> None:
    written: list[bytes] = []
    encoder = SegmentEncoder(SegmentHeader("hpc", 1, 0, 0, 0), written.append)
    target, id = Target(1, 1, "in"), UUID(1, 2)
    for seq, verdict in enumerate([Verdict.EXPIRED, Verdict.EXPIRED, Verdict.DENIED]):
        encoder.row(
            Row(
                seq, id, verdict, target, UMessageType.PUBLISH, "s", None, 1, 5, 7, 7, 0, 10 + seq, request=id
            )
        )
    encoder.letter(Letter(0, id, 10, target, "s", None, 1, 300, payload=b"\x03" * 300))
    encoder.change(SubscriptionChange(0, 3, Change.SUBSCRIBED, "t", "s"))
    encoder.gap(Gap(3, GapCause.UNFIT, 2, 40, (1, 0, 2, 0, 0, 0), 5, 6))
    _, waiting = encoder.pending
    encoder.end_block()
    for data in (waiting, *written):  # with a block header in front, and without
        lost = Skipped(rows=[1, 0, 0, 0, 0, 0])
        assert count_lost(data, lost) == 3
        assert lost.rows == [2, 0, 4, 0, 1, 0]
        assert (lost.changes, lost.letters, lost.from_ns, lost.until_ns) == (6, 7, 2, 40)
