# SPDX-License-Identifier: Apache-2.0
"""`tcp = { ... }` of a SOME/IP endpoint: the limits of its TCP connections. The names of its counters."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class TcpConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits and timeouts of TCP connections.

    * `connections`, `connections_per_host`: connections opened by peers, at one time.
    * `max_message`: bytes of one message with its header, both directions.
    * `send_buffer`: sent and unacknowledged bytes of one connection. The same limit applies again to bytes
      acknowledged within `retransmit_ms`.
    * `retransmit_ms`: bytes acknowledged this shortly before a connection broke may be unread; they are sent again over
      the next connection. 0 sends only unacknowledged bytes again.
    * `unsent_ttl_ms`: how long a message without ttl waits to be sent again.
    * `ack_timeout_ms`: a peer that acknowledges nothing for this long is disconnected.
    * `idle_ms`: an idle connection that a peer opened is closed after this time; 0 is never.
    * `message_timeout_ms`: the longest time from the first byte of a message to its last.
    * `connect_ms`, `retry_first_ms`, `retry_max_ms`: connect timeout, and the pauses between attempts.
    * `cookies`: send magic cookies, and search for them behind an invalid message.
    """

    connections: Annotated[int, Meta(ge=1, le=4_096)] = 64
    connections_per_host: Annotated[int, Meta(ge=1, le=4_096)] = 8
    max_message: Annotated[int, Meta(ge=16, le=1 << 28)] = 1_048_576
    send_buffer: Annotated[int, Meta(ge=4_096, le=1 << 28)] = 1_048_576
    retransmit_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100
    unsent_ttl_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    ack_timeout_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    idle_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 600_000
    message_timeout_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 10_000
    connect_ms: Annotated[int, Meta(ge=10, le=60_000)] = 3_000
    retry_first_ms: Annotated[int, Meta(ge=1, le=60_000)] = 100
    retry_max_ms: Annotated[int, Meta(ge=1, le=600_000)] = 3_000
    cookies: bool = False


class TcpReason(StrEnum):
    """Reason for refusing or closing a connection: labels of counters, so few and fixed."""

    UNKNOWN_HOST = "tcp_unknown_host"
    CONNECTIONS = "tcp_connections"
    HOST_CONNECTIONS = "tcp_host_connections"
    STREAM = "tcp_stream"  # the start of the next message is unknown
    MESSAGE_TIMEOUT = "tcp_message_timeout"  # a message has begun and does not end
    IDLE = "tcp_idle"
