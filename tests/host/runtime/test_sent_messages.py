# SPDX-License-Identifier: Apache-2.0
"""Sent messages get the deliveries that they had, and reach the durable queue."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.host.egress.durable_queue_rig import DurableQueueRig
from tests.host.egress.test_endpoint_queue import CALLER, ScriptedTransport, call, event
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.host.runtime.sent_messages import DurableSentStore, SentMessages
from ustreamer.uprotocol.uuri import UUri


def test_a_kept_message_has_the_topic_and_the_ingress_of_its_source(tmp_path: Path) -> None:
    rig = DurableQueueRig(tmp_path, ScriptedTransport(), quick=True)
    asked: list[tuple[str, str, UUri | None]] = []

    def restored_delivery(
        ingress: str, endpoint: str, topic: UUri | None, subscriber: UUri | None
    ) -> Delivery:
        asked.append((ingress, endpoint, topic))
        return Delivery(rig.gateway, rig.queue, topic, subscriber)

    dispatcher: Any = SimpleNamespace(restored_delivery=restored_delivery)
    messages = SentMessages(dispatcher, rig.queue, lambda source: "chassis")
    store = DurableSentStore(rig.queue, messages)
    publication, request = event(1, made_ms=1), call(CALLER, 2)
    assert store.keep("route", [publication, publication, request])
    topic = publication.attributes.source
    assert asked == [("chassis", "backbone", topic), ("chassis", "backbone", None)]
    [first, _, last] = messages.as_queued([publication, publication, request])
    assert (first.delivery.topic, last.delivery.topic, len(asked)) == (topic, None, 2)
    assert rig.queue.counters()["spooled_sent"] == 2
    assert store.release("route")
    assert rig.queue.counters()["spooled_sent"] == 0
    rig.die()
