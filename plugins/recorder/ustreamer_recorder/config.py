# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.recorder]`."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ustreamer.transport_port import ConfigWarning, NamedPattern
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.encoder import MAX_PAYLOAD
from ustreamer_recorder.layout import MAX_RECORDS, RECORD
from ustreamer_recorder.payload_sampler import PayloadSampler

DEFAULT_PAYLOAD_BYTES: Final = 1_024
LARGEST_BLOCK = RECORD * (1 + MAX_RECORDS)


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The directory of recordings and their limits. docs/configuration.md describes each key."""

    directory: str = "recordings"
    payloads: bool | tuple[str, ...] = False
    payload_bytes: Annotated[int, Meta(ge=0, le=MAX_PAYLOAD)] = DEFAULT_PAYLOAD_BYTES
    payload_hz: Annotated[float, Meta(gt=0, le=10_000)] = 10.0
    payload_bytes_per_s: Annotated[int, Meta(ge=1)] = 100_000
    flush_ms: Annotated[int, Meta(ge=10, le=60_000)] = 200
    sync_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 5_000
    segment_bytes: Annotated[int, Meta(ge=4 * LARGEST_BLOCK, le=1 << 30)] = 16_777_216
    segment_s: Annotated[int, Meta(ge=1, le=86_400)] = 900
    max_bytes: Annotated[int, Meta(ge=8 * LARGEST_BLOCK)] = 1_000_000_000
    max_age_days: Annotated[int, Meta(ge=1)] = 30
    keep_free_bytes: Annotated[int, Meta(ge=0)] = 64_000_000
    buffer_rows: Annotated[int, Meta(ge=1_024, le=1_000_000)] = 65_536

    def __post_init__(self) -> None:
        self.patterns()
        if self.directory.startswith("~"):
            raise ValueError(
                f"directory: {self.directory!r}: only a shell expands ~: expected a path below state_dir, "
                "such as recordings, or the whole path"
            )
        if self.max_bytes < 2 * self.segment_bytes:
            raise ValueError(
                f"max_bytes: {self.max_bytes}: expected at least twice segment_bytes ({self.segment_bytes}), "
                f"such as {2 * self.segment_bytes}"
            )

    def patterns(self) -> Sequence[NamedPattern]:
        """The topics whose payloads are kept; see `ustreamer.hooks.ReviewedConfig`. Raises ValueError."""
        topics = () if isinstance(self.payloads, bool) else self.payloads
        return [
            NamedPattern(f"payloads[{index}]", _pattern(each, index)) for index, each in enumerate(topics)
        ]

    def sampler(self) -> PayloadSampler | None:
        """The limits of payloads that are kept by topic; None if no topic is named."""
        patterns = [each.pattern for each in self.patterns()]
        return PayloadSampler(patterns, self.payload_hz, self.payload_bytes_per_s) if patterns else None

    def warnings(self) -> Sequence[ConfigWarning]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        if self.payloads or self.payload_bytes == DEFAULT_PAYLOAD_BYTES:
            return ()
        text = "never applies: payloads is false, so no payload is recorded"
        return (ConfigWarning("payload_bytes", text, "leave payload_bytes out, or add payloads = true"),)


def _pattern(topic: str, index: int) -> UUri:
    """`*` as the last part means every topic, as FFFF does."""
    text = f"{topic[:-1]}FFFF" if topic.endswith("/*") else topic
    try:
        return UUri.parse(text)
    except UStatusError as error:
        raise ValueError(f"payloads[{index}]: {error.message}") from error
