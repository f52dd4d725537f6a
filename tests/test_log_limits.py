# SPDX-License-Identifier: Apache-2.0
"""Every event of the log is bounded: no remote host can fill the disk with it."""

from tests.test_repository import source_modules, text_of
from tests.test_vocabulary import log_events

LIMITED = {
    "dead_letters.not_persisted",
    "egress.not_persisted",
    "egress.route_unavailable",
    "egress.spool_failed",
    "egress.unavailable",
    "mqtt.connected",
    "mqtt.connection_lost",
    "mqtt.message_refused",
    "mqtt.not_connected",
    "mqtt.packet_refused",
    "mqtt.watcher_failed",
    "observe.failed",
    "plugins.authorisation_failed",
    "plugins.subscription_answer_refused",
    "someip.found",
    "someip.initial_event_failed",
    "someip.lost",
    "someip.offer_role_changed",
    "someip.rebooted",
    "someip.silent",
    "someip.tcp_not_accepted",
    "someip.tcp_not_connected",
    "spool.delete_failed",
    "spool.messages_lost",
    "storage.degraded",
    "storage.recovered",
    "streamer.duplicate_network",
    "streamer.peers",
    "timers.callback_failed",
    "ustreamer_service.failed",
    "ustreamer_service.not_persisted",
    "usubscription.external_found",
    "usubscription.external_lost",
    "usubscription.reset_requested",
    "wamp.accept_failed",
    "wamp.client_ended",
    "wamp.client_refused",
    "wamp.decoder_failed",
    "wamp.login_failed",
    "wamp.login_limit",
    "wamp.process_ended",
    "wamp.process_invalid",
    "wamp.process_not_started",
    "wamp.process_stalled",
    "wamp.session_revoked",
    "wamp.tick_failed",
    "zenoh.link_closed_stalled",
    "zenoh.link_closed_unread",
    "zenoh.link_forgotten",
    "zenoh.node_was_lost",
    "zenoh.link_down",
    "zenoh.link_up",
    "zenoh.receipts_failed",
}
"""Events that repeat as often as a remote host, or a disk that it fills, makes them: see `log_limit.limited`."""

BOUNDED = {
    "once per kind of error or reason": {
        "local.listener_failed",
        "mqtt.listener_failed",
        "plugins.failed",
        "tracing.failed",
        "plugins.tap_disabled",
        "egress.failed",
        "observe.not_notified",
        "recorder.row_not_encodable",
        "someip.listener_failed",
        "wamp.listener_failed",
        "someip.oversized",
        "someip.receive_failed",
        "someip.refused",
        "someip.segments_abandoned",
        "usubscription.%s_not_sent",
        "usubscription.call_not_sent",
        "usubscription.unreadable_response",
        "zenoh.advertisement_failed",
        "zenoh.advertisement_limit",
        "zenoh.announcement_limit",
        "zenoh.foreign_key",
        "zenoh.link_monitor_failed",
        "zenoh.link_watcher_failed",
        "zenoh.listener_failed",
        "zenoh.peer_watcher_failed",
        "zenoh.receipts_not_announced",
        "zenoh.refused_announcement",
        "zenoh.refused_receipt",
        "zenoh.sample_refused",
    },
    "once at the begin and once at the end of an intrusion, 2 048 of which are watched": {
        "streamer.intrusion_began",
        "streamer.intrusion_ended",
    },
    "at most once per second, or per pause of the recorder": {
        "admin.not_accepted",
        "clock.stepped",
        "recorder.disk",
        "recorder.gap",
        "recorder.resumed",
        "recorder.segment_not_finished",
    },
    "at most once per outage of the collector, and once in a while for lost spans": {
        "tracing.collector_away",
        "tracing.resumed",
        "tracing.spans_lost",
    },
    "at the start or the end of the process, a plugin or a file": {
        "dead_letters.store_damaged",
        "egress.not_restored",
        "egress.restored",
        "egress.sent_not_moved",
        "observe.listening",
        "recorder.failed",
        "recorder.not_recovered",
        "recorder.recovered",
        "recorder.stopped",
        "someip.fields_damaged",
        "someip.fields_unreadable",
        "someip.no_batches",
        "someip.peer_socket_failed",
        "spool.damaged",
        "spool.receivers_lost",
        "tracing.stopped",
        "streamer.spool_unused",
        "streamer.started",
        "streamer.stopped",
        "streamer.stopped_topics_damaged",
        "streamer.stopped_topics_unreadable",
        "streamer.unconfirmed",
        "usubscription.started",
        "usubscription.store_damaged",
        "usubscription.via_not_stored",
        "usubscription.via_unreadable",
        "usubscription.store_migrated",
        "usubscription.updates_not_sent",
        "streamer.log_lines_left_out",
        "wamp.events_lost",
        "wamp.publications_not_ended",
        "zenoh.close_failed",
    },
    "by an action of the operator on this machine": {
        "admin.client_lost",
        "admin.failed",
        "control.reload_refused",
        "dead_letters.redriven",
        "someip.link",
        "streamer.reloaded",
        "wamp.certificate_loaded",
        "wamp.certificate_not_loaded",
        "wamp.users_not_changed",
    },
}
"""Events that no remote host can repeat, by the reason."""


def events_by_module() -> dict[str, set[str]]:
    """The events of each module."""
    found: dict[str, set[str]] = {}
    for place, event in log_events():
        found.setdefault(place.rsplit(":", 1)[0], set()).add(event)
    return found


def test_each_event_is_limited_or_bounded_for_a_reason() -> None:
    events = set[str]().union(*events_by_module().values())
    bounded = [event for each in BOUNDED.values() for event in each]
    assert len(bounded) == len(set(bounded))
    assert LIMITED.isdisjoint(bounded)
    # These are not literals at their calls.
    conditional = {"zenoh.link_up", "zenoh.link_down"}
    assert events | conditional == LIMITED | set(bounded)


def test_a_module_with_a_limited_event_marks_it() -> None:
    for module, events in events_by_module().items():
        if events & LIMITED:
            assert "**limited(" in text_of(module), module
    assert [
        module for module in source_modules() if "link_monitor" in module and "**limited(" in text_of(module)
    ]
