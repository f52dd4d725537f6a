# SPDX-License-Identifier: Apache-2.0
"""`tcp = { ... }` of a SOME/IP endpoint: the bounds of its connections over TCP."""

from typing import Annotated

from msgspec import Meta, Struct


class TcpConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the connections over TCP, and how they are kept.

    * `connections`, `connections_per_host`: that others have opened to us, at one time.
    * `max_message`: bytes of one message, header and all, both ways.
    * `send_buffer`: bytes of one connection that have been sent and not acknowledged; the same again of those that were
      acknowledged within `replay_ms` before.
    * `replay_ms`: what was acknowledged so shortly before a connection was torn down may not have been read, and is sent again
      over the next one. 0 sends again what was not acknowledged and no more.
    * `unsent_ttl_ms`: how long what has no ttl waits to be sent again.
    * `ack_timeout_ms`: a peer that acknowledges nothing for so long is gone.
    * `idle_ms`: a connection that others have opened, and over which nothing goes for so long, is closed; 0 is never.
    * `message_timeout_ms`: how long the rest of a message that has begun may take.
    * `connect_ms`, `retry_first_ms`, `retry_max_ms`: how long a connection may take to come about, and the pauses between tries.
    * `cookies`: send magic cookies, and look for them after bytes that cannot be a message.
    """

    connections: Annotated[int, Meta(ge=1, le=4_096)] = 64
    connections_per_host: Annotated[int, Meta(ge=1, le=4_096)] = 8
    max_message: Annotated[int, Meta(ge=16, le=1 << 28)] = 1_048_576
    send_buffer: Annotated[int, Meta(ge=4_096, le=1 << 28)] = 1_048_576
    replay_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100
    unsent_ttl_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    ack_timeout_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    idle_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 600_000
    message_timeout_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 10_000
    connect_ms: Annotated[int, Meta(ge=10, le=60_000)] = 3_000
    retry_first_ms: Annotated[int, Meta(ge=1, le=60_000)] = 100
    retry_max_ms: Annotated[int, Meta(ge=1, le=600_000)] = 3_000
    cookies: bool = False
