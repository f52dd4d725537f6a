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
    "max-payload-size-reliable": "TCP is not part of this version",
    "max-payload-size-unreliable": "what comes in segments may have 131072 bytes",
    "netmask": "list networks in `clients` if others than the known peers may call",
    "network": "there is no local transport",
    "npdu-default-timings": "messages are not held back to be sent together",
    "payload-sizes": "TCP is not part of this version",
    "plugins": "plugins are ours",
    "routing": "there is no routing manager",
    "routing-credentials": "there is no routing manager",
    "security": "see `access` of an endpoint",
    "shutdown_timeout": "see the option --drain",
    "statistics": "see `ustreamer top`",
    "supports_selective_broadcasts": "not supported",
    "tcp-restart-aborts-max": "TCP is not part of this version",
    "tcp-connect-time-max": "TCP is not part of this version",
    "threads": "threads are ours",
    "tracing": "see `ustreamer top`",
    "udp-receive-buffer-size": "see `receive_buffer`",
    "watchdog": "there is no routing manager",
}
SERVICE: Final = {
    "debounce-times": "messages are not held back to be sent together",
    "multicast": "multicast of events is not part of this version",
    "someip-tp": "what comes in segments is taken; sending in segments is not part of this version",
}
EVENT: Final = {
    "change_resets_cycle": "events are sent when their provider publishes",
    "cycle": "events are sent when their provider publishes",
    "is_field": "an event like any other: its last value is not kept",
    "update-cycle": "events are sent when their provider publishes",
    "update_on_change": "events are sent when their provider publishes",
}
EVENTGROUP: Final = {
    "multicast": "multicast of events is not part of this version",
    "threshold": "multicast of events is not part of this version",
}
