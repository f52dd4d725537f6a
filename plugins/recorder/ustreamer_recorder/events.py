# SPDX-License-Identifier: Apache-2.0
"""The events of a recording: input of `SegmentWriter`, output of `read_segment`. docs/recordings.md defines each
field.

Times are in monotonic ns unless the name has another unit.
"""

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID
from ustreamer_recorder.layout import AnchorCause, CountersCause, EndCause, GapCause


class Target(msgspec.Struct, frozen=True):
    """A destination and its rate limit. `delivery` numbers the delivery with the filters' state; 0: no delivery."""

    target: int
    delivery: int
    ingress: str
    egress: str | None = None
    topic: str | None = None
    subscriber: str | None = None
    period_ns: int = 0
    tuned_ns: int = 0


class Row(msgspec.Struct, frozen=True):
    """The verdict on one message for one target. `request`: for a Response, the id of its request."""

    seq: int
    id: UUID
    verdict: Verdict
    target: Target
    type: UMessageType
    source: str
    sink: str | None
    priority: int
    size: int
    arrived_ns: int
    received_ns: int
    first_attempt_ns: int
    settled_ns: int
    attempts: int = 0
    ttl_ms: int | None = None
    code: int | None = None
    reason: str | None = None
    epoch: int = 0
    held: bool = False
    request: UUID | None = None


class SubscriptionChange(msgspec.Struct, frozen=True):
    """A subscription was created, changed or removed."""

    number: int
    time_ns: int
    change: Change
    topic: str
    subscriber: str
    period_ns: int = 0


class Letter(msgspec.Struct, frozen=True):
    """The dead letter of row `seq`. `payload` is None if it was not kept, and shorter than `size` if it was cut."""

    seq: int
    id: UUID
    time_ns: int
    target: Target
    source: str
    sink: str | None
    attempts: int
    size: int
    code: int | None = None
    reason: str | None = None
    payload: bytes | None = None


class Sample(msgspec.Struct, frozen=True):
    """The payload of a publication. `payload` is shorter than `size` if it was cut."""

    id: UUID
    arrived_ns: int
    topic: str
    size: int
    payload: bytes
    format: int = 0


class Samples(msgspec.Struct, frozen=True):
    """Payloads that were kept by topic, in order of arrival. `dropped`: payloads above a limit since the last event."""

    from_ns: int
    until_ns: int
    samples: tuple[Sample, ...] = ()
    dropped: int = 0


class Anchor(msgspec.Struct, frozen=True):
    """Both clocks at one moment."""

    mono_ns: int
    wall_ms: int
    cause: AnchorCause = AnchorCause.SEGMENT
    clock_step_ms: int = 0

    def wall_us(self, time_ns: int) -> int:
        """The wall time of an event, in us since 1970."""
        return self.wall_ms * 1000 + (time_ns - self.mono_ns) // 1000


class Gap(msgspec.Struct, frozen=True):
    """Missing events: rows by verdict (six, in the order of Verdict), subscription changes, dead letters."""

    first_seq: int
    cause: GapCause
    from_ns: int
    until_ns: int
    rows: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    changes: int = 0
    letters: int = 0


class Config(msgspec.Struct, frozen=True):
    """The configuration from `since_ns` on; `text` is JSON."""

    epoch: int
    since_ns: int
    text: str


class Counters(msgspec.Struct, frozen=True):
    """The dispatcher's ledger, and the recorder's rows: `next_seq`, of which `skipped` are in gaps."""

    cause: CountersCause
    mono_ns: int
    ledger: LedgerSnapshot
    next_seq: int
    skipped: int


class End(msgspec.Struct, frozen=True):
    """The last event of a file that its writer finished."""

    cause: EndCause
    mono_ns: int
    wall_ms: int
    next_seq: int
    next_change: int


class Damage(msgspec.Struct, frozen=True):
    """Unusable bytes: `length` from `offset` on.

    `torn`: the end of a file whose process was killed, which is not an error. `raw`: the record with an unknown
    reference.
    """

    offset: int
    length: int
    reason: str
    torn: bool = False
    raw: bytes = b""


Event = Target | Row | SubscriptionChange | Letter | Samples | Anchor | Gap | Config | Counters | End
"""An event of a file. Each file contains a Target once, before the first row that refers to it."""
