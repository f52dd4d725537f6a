# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings replay DIR --into CONFIG` publishes a recorded run again into the networks of a live streamer.

In: the rows, subscription changes and payloads of one run. Out: the same subscriptions and publications, in the order
of arrival and at their times. Requests, responses and notifications are not replayed.
"""

import argparse
import json
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from threading import Event as Signal
from typing import Final, TypeAlias

from ustreamer.core.routing.subscriptions import Change
from ustreamer.core.routing.usubscription_codec import (
    USUBSCRIPTION,
    VERSION_3,
    SubscribeRequest,
    UsubscriptionMethod,
    subscribe_request,
    unsubscribe_request,
)
from ustreamer.hooks import Networks, OpenNetworks
from ustreamer.uprotocol.uattributes import UMessageType, UPriority
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.events import Row, Sample, Samples, SubscriptionChange
from ustreamer_recorder.run_summary import RunSummary
from ustreamer_recorder.segments import SegmentInfo, list_segments

_OK, _FAILURE, _USAGE, _DAMAGED = 0, 1, 2, 74
_NS_PER_S: Final = 1_000_000_000
_OWN_SERVICES: Final = range(5)
"""ue_id of the services that a streamer hosts: it publishes their topics itself."""
_MAX_FREQUENCY_TAG: Final = b"\x19"  # field 3 of SubscribeAttributes as a double, in Hz

Step: TypeAlias = Row | SubscriptionChange


class RecordedRun:
    """The steps of one run in order of time, and its kept payloads."""

    def __init__(self, files: Sequence[SegmentInfo]) -> None:
        self._steps: dict[UUID | int, tuple[int, Step]] = {}  # a message for many targets is one step
        self._payloads: dict[UUID, Sample] = {}
        self.not_replayed = 0
        self.summary = RunSummary(0)
        for file in files:
            for event in self.summary.count_events(file):
                match event:
                    case Row() if event.type is UMessageType.PUBLISH:
                        self._steps.setdefault(event.id, (event.arrived_ns, event))
                    case Row():
                        self.not_replayed += 1
                    case SubscriptionChange():
                        self._steps[event.number] = event.time_ns, event
                    case Samples():
                        self._payloads |= {each.id: each for each in event.samples}
        self._last: dict[str, Sample] = {}

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        return iter(sorted(self._steps.values(), key=lambda step: step[0]))

    def payload(self, row: Row) -> bytes:
        """The kept payload, else the last one of the topic with the same size, else zeros; always of its size."""
        sample = self._payloads.get(row.id)
        if sample is not None:
            self._last[row.source] = sample
        else:
            sample = self._last.get(row.source)
        if sample is None or sample.size != row.size:
            return bytes(row.size)
        return sample.payload.ljust(row.size, b"\0")


class Replay:
    """Sends the steps of a recorded run. `skipped` counts those that no network accepts, by reason."""

    def __init__(self, networks: Networks) -> None:
        self._networks = networks
        self._ids = UuidSource(networks.clock.wall_ms)
        self._usubscription = UUri(networks.authority, USUBSCRIPTION, VERSION_3, 0)
        self.published = self.changed = 0
        self.skipped: Counter[str] = Counter()

    def send(self, step: Step, payload: bytes) -> None:
        """Raises UStatusError, except for a step that cannot be replayed."""
        try:
            if isinstance(step, SubscriptionChange):
                self._change(step)
                self.changed += 1
            elif self._publish(step, payload):
                self.published += 1
        except UStatusError as error:
            if error.code is not UCode.UNIMPLEMENTED:
                raise
            self.skipped[error.message] += 1

    def _publish(self, row: Row, payload: bytes) -> bool:
        topic = UUri.parse(row.source)
        if topic.authority_name == self._networks.authority and topic.ue_id in _OWN_SERVICES:
            return False
        priority = UPriority(row.priority + 1)
        self._networks.publish(publish(self._ids.next(), topic, payload, priority=priority, ttl=row.ttl_ms))
        return True

    def _change(self, change: SubscriptionChange) -> None:
        topic, subscriber = UUri.parse(change.topic), UUri.parse(change.subscriber)
        if change.change is Change.UNSUBSCRIBED:
            method, request = UsubscriptionMethod.UNSUBSCRIBE, unsubscribe_request(topic)
        else:
            method, request = UsubscriptionMethod.SUBSCRIBE, subscribe_request(SubscribeRequest(topic))
            if change.period_ns:
                limit = struct.pack("<d", _NS_PER_S / change.period_ns)
                request.attributes.MergeFromString(_MAX_FREQUENCY_TAG + limit)  # type: ignore[attr-defined]
        self._networks.call(
            subscriber, self._usubscription.with_resource(method), request.SerializeToString()
        )


def run_replay(arguments: argparse.Namespace, open_networks: OpenNetworks) -> int:
    """Run the command; returns its exit code."""
    if not arguments.speed > 0:
        print(f"--speed {arguments.speed}: expected a number above 0", file=sys.stderr)
        return _USAGE
    try:
        files = list_segments(arguments.directory)
    except OSError as error:
        print(f"{arguments.directory}: {error.strerror}", file=sys.stderr)
        return _FAILURE
    runs = sorted({file.run for file in files})
    chosen = [run for run in runs if not arguments.number or f"{run:016x}" == arguments.number]
    if not chosen:
        have = ", ".join(f"{run:016x}" for run in runs) or "none"
        print(f"{arguments.directory}: no run {arguments.number} (have: {have})", file=sys.stderr)
        return _FAILURE
    recorded = RecordedRun([file for file in files if file.run == chosen[-1]])
    with open_networks(arguments.into) as networks:
        replay = Replay(networks)
        _send_all(recorded, replay, arguments.speed, networks.clock.monotonic_ns)
        networks.settle()
    _print_result(recorded, replay, as_json=arguments.json)
    if not (recorded.summary.damaged or recorded.summary.unannounced):
        return _OK
    print(
        f"{arguments.directory}: the recording is damaged or incomplete, so messages are missing:"
        f" ustreamer recordings check {arguments.directory}",
        file=sys.stderr,
    )
    return _DAMAGED


def _send_all(run: RecordedRun, replay: Replay, speed: float, monotonic_ns: Callable[[], int]) -> None:
    """Send each step at its time. A Subscribe waits for its response, and what follows is later by this time."""
    pause, origin_ns, first_ns = Signal(), monotonic_ns(), None
    for time_ns, step in run:
        first_ns = time_ns if first_ns is None else first_ns
        left_ns = origin_ns + (time_ns - first_ns) / speed - monotonic_ns()
        if left_ns > 0:
            pause.wait(left_ns / _NS_PER_S)
        if isinstance(step, SubscriptionChange):
            before_ns = monotonic_ns()
            replay.send(step, b"")
            origin_ns += monotonic_ns() - before_ns
        else:
            replay.send(step, run.payload(step))


def _print_result(run: RecordedRun, replay: Replay, *, as_json: bool) -> None:
    result = {
        "published": replay.published,
        "subscription_changes": replay.changed,
        "not_replayed": run.not_replayed,
        "not_recorded": run.summary.skipped + run.summary.unannounced,
        "skipped": dict(replay.skipped),
    }
    if as_json:
        print(json.dumps(result))
        return
    print(f"published {replay.published} messages, {replay.changed} subscription changes")
    if run.not_replayed:
        print(f"not replayed: {run.not_replayed} rows of requests, responses and notifications")
    if result["not_recorded"]:
        print(f"not recorded: {result['not_recorded']} rows of any message")
    for reason, count in replay.skipped.items():
        print(f"skipped {count}: {reason}")
