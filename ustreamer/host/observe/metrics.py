# SPDX-License-Identifier: Apache-2.0
"""The names and labels of the metrics. A `MetricsSnapshot` in, metric families of prometheus_client out.

Units are in the names. Labels are names of endpoints, verdicts, reasons and stores, which the configuration and the
code bound. Topics and subscribers are labels only of the N busiest (`[observe] top`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.samples import Sample

from ustreamer import __version__
from ustreamer.host.observe.exposition import Labels
from ustreamer.host.observe.snapshot import FINAL_VERDICTS, EndpointSnapshot, MetricsSnapshot
from ustreamer.uprotocol.uuri import UUri

_NS_PER_S: Final = 1_000_000_000
_MS_PER_S: Final = 1_000
_PRESENT_SUFFIXES: Final = ("_now", "_open", "_waiting", "_bytes")
_PRESENT: Final = frozenset(
    {
        "field_values",
        "inbox_messages",
        "links",
        "remote_subscriptions",
        "sd_dynamic_services",
        "sd_eventgroups",
        "sd_found",
        "sd_groups_joined",
        "sd_groups_not_joined",
        "sd_multicast_topics",
        "sd_offers",
        "sd_offers_standby",
        "sd_peers",
        "sd_receivers",
        "sd_streamers",
        "sd_subscribed",
        "sd_subscribers",
        "sd_topics",
        "sd_undecided",
        "sd_wanted",
        "spooled",
        "spooled_sent",
        "unwritten",
    }
)
"""Present values of the shipped transports and of durable queues whose names do not end in a suffix of these."""
_REFUSED: Final = "refused_"
_PLUGIN_ERRORS: Final = {"filter_errors": "filter", "directory_errors": "directory", "tap_errors": "tap"}
_BACKPRESSURE: Final = frozenset({"backpressure_waits", "backpressure_ms", "backpressure_refused"})


def is_present_value(counter: str) -> bool:
    """Whether a number of a transport or queue is a present value; any other counts from the start."""
    if counter.startswith(_REFUSED):
        return False
    return counter in _PRESENT or counter.endswith(_PRESENT_SUFFIXES)


def metric_families(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    """All metrics of the streamer; those of the process come from prometheus_client."""
    yield InfoMetricFamily("ustreamer_build", "The version of the streamer.", {"version": __version__})
    yield _single(
        _gauge,
        "ustreamer_unaccounted",
        "Received deliveries with neither a verdict nor a place in a queue; 0, or a defect.",
        snapshot.unaccounted,
    )
    yield _single(
        _gauge,
        "ustreamer_stopped_topics",
        "Topics that a subscriber has stopped with StopDispatching.",
        snapshot.stopped_topics,
    )
    endpoints = [({"endpoint": each.name}, each) for each in snapshot.endpoints]
    for metric in _PER_ENDPOINT:
        make = _counter if metric.counts else _gauge
        yield make(metric.name, metric.text, [(labels, metric.value(each)) for labels, each in endpoints])
    yield from _labelled(snapshot.endpoints)
    yield from _intrusions(snapshot)
    yield from _targets(snapshot)
    yield from _dead_letters(snapshot)
    yield from _stores(snapshot)


class _PerEndpoint(NamedTuple):
    """A metric with the label `endpoint` only."""

    name: str
    text: str
    value: Callable[[EndpointSnapshot], float]
    counts: bool = False


_PER_ENDPOINT: Final = (
    _PerEndpoint(
        "ustreamer_received",
        "Deliveries of the messages that came in at the endpoint: one per message and target.",
        lambda each: each.received,
        counts=True,
    ),
    _PerEndpoint("ustreamer_held_messages", "Messages that filters hold.", lambda each: each.held),
    _PerEndpoint("ustreamer_peers", "Other streamers on the network.", lambda each: each.peers),
    _PerEndpoint(
        "ustreamer_link_ups",
        "How often the link has come up, or a peer has become ready.",
        lambda each: each.link.up_count,
        counts=True,
    ),
    _PerEndpoint(
        "ustreamer_queue_messages",
        "Messages in the egress queue, blocked ones and those in flight included.",
        lambda each: each.queue.queued,
    ),
    _PerEndpoint(
        "ustreamer_queue_bytes", "Bytes of the waiting messages.", lambda each: each.queue.queued_bytes
    ),
    _PerEndpoint(
        "ustreamer_queue_oldest_age_seconds",
        "Age of the oldest waiting message; 0 without one.",
        lambda each: each.oldest_age_ns / _NS_PER_S,
    ),
    _PerEndpoint(
        "ustreamer_queue_blocked_messages",
        "Waiting messages whose route is closed.",
        lambda each: each.queue.blocked,
    ),
    _PerEndpoint(
        "ustreamer_queue_closed_routes", "Routes that are closed.", lambda each: each.queue.closed_routes
    ),
    _PerEndpoint(
        "ustreamer_queue_persisted_messages",
        "Waiting messages that are on disk (durable endpoints).",
        lambda each: each.queue.persisted,
    ),
    _PerEndpoint(
        "ustreamer_queue_subscribers",
        "Subscribers with waiting messages.",
        lambda each: each.queue.subscribers,
    ),
    _PerEndpoint(
        "ustreamer_queue_retries",
        "Sends that were refused as unavailable.",
        lambda each: each.queue.retries,
        counts=True,
    ),
    _PerEndpoint(
        "ustreamer_queue_evicted_by_subscriber_limit",
        "Messages dropped because of the limits of their subscriber.",
        lambda each: each.queue.evicted_subscriber_limit,
        counts=True,
    ),
    _PerEndpoint(
        "ustreamer_queue_limit_messages",
        "Configured limit of messages in the egress queue.",
        lambda each: each.limits.queue_messages,
    ),
    _PerEndpoint(
        "ustreamer_queue_limit_bytes",
        "Configured limit of bytes in the egress queue.",
        lambda each: each.limits.queue_bytes,
    ),
    _PerEndpoint(
        "ustreamer_queue_limit_age_seconds",
        "Age at which a message without ttl expires.",
        lambda each: each.limits.max_age_ms / _MS_PER_S,
    ),
    _PerEndpoint(
        "ustreamer_backpressure_waits",
        "How often the input waited for this queue.",
        lambda each: each.counters.get("backpressure_waits", 0),
        counts=True,
    ),
    _PerEndpoint(
        "ustreamer_backpressure_seconds",
        "How long the input waited for this queue.",
        lambda each: each.counters.get("backpressure_ms", 0) / _MS_PER_S,
        counts=True,
    ),
    _PerEndpoint(
        "ustreamer_backpressure_refused",
        "How often the input gave up waiting for a slow receiver.",
        lambda each: each.counters.get("backpressure_refused", 0),
        counts=True,
    ),
)


_NOTHING_ELSE: Final = Sample("", {}, 0)[3:]
"""The timestamp and the exemplar of a sample, which none has."""
_MAX_LABELS: Final = 8_192
"""Targets whose labels are kept from scrape to scrape: more than `top` permits, and 5 MB at most."""
_Labels = dict[str, str]
_Values = Iterable[tuple[_Labels, float]]
"""The labels and the number of each series. Several metrics can share a dict of labels, which makes their text once."""
_NO_LABELS: Final[_Labels] = {}


def _counter(name: str, text: str, values: _Values) -> Metric:
    return _filled(Metric(name, text, "counter"), f"{name}_total", values)


def _gauge(name: str, text: str, values: _Values) -> Metric:
    return _filled(Metric(name, text, "gauge"), name, values)


def _single(make: Callable[[str, str, _Values], Metric], name: str, text: str, value: float) -> Metric:
    """A metric without labels."""
    return make(name, text, [(_NO_LABELS, value)])


def _filled(family: Metric, name: str, values: _Values) -> Metric:
    # `add_sample` and `add_metric` of the library take three times as long.
    made = tuple.__new__  # as `Sample(...)`, which takes twice as long
    family.samples = [made(Sample, (name, labels, value, *_NOTHING_ELSE)) for labels, value in values]
    return family


# --- endpoints -------------------------------------------------------------------------------------------------------


def _labelled(endpoints: Sequence[EndpointSnapshot]) -> Iterator[Metric]:
    """The metrics of endpoints with a second label."""
    yield _gauge(
        "ustreamer_endpoint_up",
        "1 if a receiver is reachable, or if the transport does not know.",
        [({"endpoint": each.name, "transport": each.transport}, int(each.link.up)) for each in endpoints],
    )
    yield _counter(
        "ustreamer_deliveries",
        "Deliveries that ended at the endpoint, by verdict.",
        [
            ({"endpoint": each.name, "verdict": verdict.name.lower()}, each.verdicts[verdict])
            for each in endpoints
            for verdict in FINAL_VERDICTS
        ],
    )
    yield _counter(
        "ustreamer_refused",
        "Input that was not accepted, by reason.",
        [
            ({"endpoint": each.name, "reason": name.removeprefix(_REFUSED)}, count)
            for each in endpoints
            for name, count in each.counters.items()
            if name.startswith(_REFUSED)
        ],
    )
    yield _counter(
        "ustreamer_plugin_errors",
        "Exceptions of plugins, by kind of plugin.",
        [
            ({"endpoint": each.name, "kind": kind}, each.counters[name])
            for each in endpoints
            for name, kind in _PLUGIN_ERRORS.items()
            if name in each.counters
        ],
    )
    yield _counter(
        "ustreamer_transport_events",
        "Other counters, by their name in `ustreamer top`.",
        _transport_numbers(endpoints, "event", present=False),
    )
    yield _gauge(
        "ustreamer_transport_state",
        "Other present values, by their name in `ustreamer top`.",
        _transport_numbers(endpoints, "state", present=True),
    )


def _transport_numbers(endpoints: Sequence[EndpointSnapshot], label: str, *, present: bool) -> _Values:
    """The counters that have no metric of their own, with their name as the value of `label`."""
    return [
        ({"endpoint": each.name, label: name}, number)
        for each in endpoints
        for name, number in each.counters.items()
        if is_present_value(name) is present
        and not name.startswith(_REFUSED)
        and name not in _PLUGIN_ERRORS
        and name not in _BACKPRESSURE
    ]


def _intrusions(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    peers = Counter(each.endpoint for each in snapshot.intrusions)
    yield _gauge(
        "ustreamer_intrusion_peers",
        "Peers that are refused again and again: `ustreamer top` names them.",
        [({"endpoint": each.name}, peers[each.name]) for each in snapshot.endpoints],
    )
    yield _counter(
        "ustreamer_intrusions",
        "How often a peer began to be refused again and again.",
        [
            ({"endpoint": endpoint, "reason": reason}, count)
            for (endpoint, reason), count in sorted(snapshot.intrusions_begun.items())
        ],
    )


# --- topics and subscribers ------------------------------------------------------------------------------------------


@lru_cache(maxsize=_MAX_LABELS)
def _target_labels(topic: UUri, ingress: str, endpoint: str, subscriber: UUri | None) -> Labels:
    labels = Labels(topic=str(topic), ingress=ingress, endpoint=endpoint)
    labels["subscriber"] = "" if subscriber is None else str(subscriber)
    return labels


def _targets(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    targets = [
        (
            _target_labels(each.topic, each.ingress, each.endpoint, each.subscriber),
            each,
        )
        for each in snapshot.targets
    ]
    yield _counter(
        "ustreamer_target_received",
        "Messages for one of the busiest targets.",
        [(labels, each.received) for labels, each in targets],
    )
    yield _counter(
        "ustreamer_target_delivered",
        "Messages that were sent to the target.",
        [(labels, each.delivered) for labels, each in targets],
    )
    yield _counter(
        "ustreamer_target_throttled",
        "Messages above the rate that the target asked for.",
        [(labels, each.throttled) for labels, each in targets],
    )
    yield _gauge(
        "ustreamer_target_period_seconds",
        "Least time between two messages for the target; 0: no limit.",
        [(labels, each.period_ns / _NS_PER_S) for labels, each in targets],
    )
    queues = [
        ({"endpoint": endpoint.name, "subscriber": str(each.subscriber)}, each)
        for endpoint in snapshot.endpoints
        for each in endpoint.queue.fullest
    ]
    yield _gauge(
        "ustreamer_subscriber_queue_messages",
        "Messages in one of the fullest subscriber queues.",
        [(labels, each.queued) for labels, each in queues],
    )
    yield _gauge(
        "ustreamer_subscriber_queue_bytes",
        "Bytes in the subscriber queue.",
        [(labels, each.queued_bytes) for labels, each in queues],
    )
    yield _gauge(
        "ustreamer_subscriber_queue_failures",
        "Sends to the subscriber that were refused in a row.",
        [(labels, each.failures) for labels, each in queues],
    )


# --- dead letters and stores -----------------------------------------------------------------------------------------

_LETTERS: Final = {
    "unpublished": "Dead letters that were not published: too many, or at a stop.",
    "suppressed": "Dead letters above the rate limit, which are only counted.",
    "persisted": "Dead letters that were stored.",
    "not_persisted": "Dead letters that could not be stored.",
    "displaced": "Stored dead letters that newer ones displaced.",
}
_LETTERS_PRESENT: Final = {
    "waiting": "Dead letters that wait to be stored.",
    "stored": "Dead letters in the store.",
    "stored_bytes": "Bytes of the stored dead letters.",
}


def _dead_letters(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    yield _counter(
        "ustreamer_dead_letters",
        "Undeliverable messages, by endpoint and UCode; suppressed ones included.",
        [
            ({"endpoint": endpoint, "reason": code.name.lower()}, count)
            for (endpoint, code), count in sorted(snapshot.dead_letter_reasons.items())
        ],
    )
    for name, text in _LETTERS.items():
        yield _single(_counter, f"ustreamer_dead_letters_{name}", text, snapshot.dead_letters[name])
    for name, text in _LETTERS_PRESENT.items():
        yield _single(_gauge, f"ustreamer_dead_letters_{name}", text, snapshot.dead_letters[name])
    limits = snapshot.dead_letter_limits
    yield _single(
        _gauge,
        "ustreamer_dead_letters_limit_messages",
        "Configured limit of stored dead letters.",
        limits.messages,
    )
    yield _single(
        _gauge, "ustreamer_dead_letters_limit_bytes", "Configured limit of their bytes.", limits.bytes
    )


def _stores(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    stores = [({"store": each.name}, each) for each in snapshot.stores]
    yield _gauge(
        "ustreamer_store_degraded",
        "1 if the disk refused the last write of a store.",
        [(labels, int(bool(each.state.degraded))) for labels, each in stores],
    )
    yield _counter(
        "ustreamer_store_refused_writes",
        "Writes that the disk refused.",
        [(labels, each.state.refused) for labels, each in stores],
    )
    yield _gauge(
        "ustreamer_store_file_bytes",
        "Size of the file of a store.",
        [(labels, each.file_bytes) for labels, each in stores],
    )
