# SPDX-License-Identifier: Apache-2.0
"""Keys of vsomeip's JSON that have no place in a configuration of ours, and why. Any other key is said to be not known."""

from typing import Final

TOP: Final = {
    "applications": "client ids are those of the uEntities that call",
    "debugging": "see the options --log and --log-level",
    "device": "the address is enough",
    "dispatching": "threads are ours",
    "e2e": "payloads are not opened; E2E stays between its ends",
    "endpoint-queue-limit-external": "see [egress]",
    "endpoint-queue-limits": "see [egress]",
    "logging": "see the options --log and --log-level",
    "max-payload-size-local": "there is no local transport",
    "max-payload-size-reliable": "see `max_message` of `tcp`",
    "max-payload-size-unreliable": "see `tp.message_bytes`, 131072, for what comes in segments",
    "netmask": "list networks in `clients` if others than the known peers may call",
    "network": "there is no local transport",
    "npdu-default-timings": "messages are not held back to be sent together",
    "payload-sizes": "see `max_message` of `tcp`",
    "plugins": "plugins are ours",
    "routing": "there is no routing manager",
    "routing-credentials": "there is no routing manager",
    "security": "see `access` of an endpoint",
    "shutdown_timeout": "see the option --drain",
    "statistics": "see `ustreamer top`",
    "supports_selective_broadcasts": "not supported",
    "tcp-restart-aborts-max": "see `retry_max_ms` of `tcp`",
    "tcp-connect-time-max": "see `connect_ms` of `tcp`",
    "threads": "threads are ours",
    "tracing": "see `ustreamer top`",
    "udp-receive-buffer-size": "see `receive_buffer`",
    "watchdog": "there is no routing manager",
}
SERVICE: Final = {
    "debounce-times": "messages are not held back to be sent together",
    "multicast": "see `multicast` of its `eventgroups`",
}
EVENT: Final = {
    "change_resets_cycle": "events are sent when their provider publishes",
    "cycle": "events are sent when their provider publishes",
    "is_field": "of a service of others: its ECU sends the first value",
    "update-cycle": "events are sent when their provider publishes",
    "update_on_change": "events are sent when their provider publishes",
}
EVENTGROUP: Final = {
    "multicast": "of a service of others: its ECU says so when it is subscribed",
    "threshold": "of a service of others: its ECU says so when it is subscribed",
}
