# SPDX-License-Identifier: Apache-2.0
"""Keys of vsomeip's JSON without a counterpart in the streamer's configuration, and the reason. All other keys are
reported as not known.
"""

from typing import Final

TOP: Final = {
    "applications": "client ids are those of the uEntities that call",
    "debugging": "see the options --log-format and --log-level",
    "device": "the address is enough",
    "dispatching": "the streamer manages its threads",
    "e2e": "set `e2e` at the events; without it E2E stays between its ends",
    "endpoint-queue-limit-external": "see [egress]",
    "endpoint-queue-limits": "see [egress]",
    "logging": "see the options --log-format and --log-level",
    "max-payload-size-local": "there is no local transport",
    "max-payload-size-reliable": "see `max_message` of `tcp`",
    "max-payload-size-unreliable": "see `tp.message_bytes`, 131072, for segmented messages",
    "netmask": "list networks in `clients` if others than the known peers may call",
    "network": "there is no local transport",
    "npdu-default-timings": "messages are not held back to be sent together",
    "payload-sizes": "see `max_message` of `tcp`",
    "plugins": "vsomeip plugins do not apply",
    "routing": "there is no routing manager",
    "routing-credentials": "there is no routing manager",
    "security": "see `access` of an endpoint",
    "shutdown_timeout": "see the option --drain",
    "statistics": "see `ustreamer top`",
    "supports_selective_broadcasts": "not supported",
    "tcp-restart-aborts-max": "see `retry_max_ms` of `tcp`",
    "tcp-connect-time-max": "see `connect_ms` of `tcp`",
    "threads": "the streamer manages its threads",
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
    "update-cycle": "events are sent when their provider publishes",
    "update_on_change": "events are sent when their provider publishes",
}
EVENTGROUP: Final = {
    "multicast": "for services of other hosts: their ECU announces it in the acknowledgement",
    "threshold": "for services of other hosts: their ECU announces it in the acknowledgement",
}
