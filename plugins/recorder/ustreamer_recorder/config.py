# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.recorder]`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.transport_port import ConfigWarning, NamedPattern
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.encoder import MAX_PAYLOAD
from ustreamer_recorder.layout import MAX_RECORDS, RECORD
from ustreamer_recorder.payload_sampler import PayloadSampler
from ustreamer_recorder.trigger_window import MAX_BYTES, TriggerWindow

DEFAULT_PAYLOAD_BYTES: Final = 1_024
TRIGGER_VERDICTS: Final[Mapping[str, Verdict]] = {
    each.name.lower(): each for each in (Verdict.EXPIRED, Verdict.DEAD_LETTERED, Verdict.DENIED)
}
"""The verdicts that can be a trigger, by their names in `trigger`."""
LARGEST_BLOCK = RECORD * (1 + MAX_RECORDS)


class RecorderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The directory of recordings and their limits. docs/configuration.md describes each key."""

    directory: str = "recordings"
    release: Annotated[str, Meta(max_length=100)] = ""
    payloads: bool | tuple[str, ...] = False
    payload_bytes: Annotated[int, Meta(ge=0, le=MAX_PAYLOAD)] = DEFAULT_PAYLOAD_BYTES
    payload_hz: Annotated[float, Meta(gt=0, le=10_000)] = 10.0
    payload_bytes_per_s: Annotated[int, Meta(ge=1)] = 100_000
    trigger: tuple[str, ...] = ()
    trigger_before_s: Annotated[float, Meta(ge=0, le=600)] = 10.0
    trigger_after_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
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
        if self._waiting_bytes() > MAX_BYTES:
            raise ValueError(
                f"trigger_before_s: {self.trigger_before_s}: expected at most {MAX_BYTES} bytes in this time, "
                f"such as {MAX_BYTES // self.payload_bytes_per_s} s with payload_bytes_per_s = "
                f"{self.payload_bytes_per_s}"
            )
        if self.directory.startswith(("~", "$")):
            raise ValueError(
                f"directory: {self.directory!r}: only a shell expands {self.directory[0]}: expected a path below state_dir, "
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
        return [*_patterns("payloads", topics), *self._trigger_patterns()]

    def _trigger_patterns(self) -> Sequence[NamedPattern]:
        return _patterns("trigger", self.trigger, TRIGGER_VERDICTS)

    def _waiting_bytes(self) -> float:
        return self.payload_bytes_per_s * self.trigger_before_s if self.trigger else 0

    def trigger_window(self) -> TriggerWindow | None:
        """The window around triggers; None without one: every payload that is due is kept."""
        if not self.trigger:
            return None
        topics = [each.pattern for each in self._trigger_patterns()]
        verdicts = {TRIGGER_VERDICTS[each] for each in self.trigger if each in TRIGGER_VERDICTS}
        before_ns, after_ns = (round(each * 1e9) for each in (self.trigger_before_s, self.trigger_after_s))
        return TriggerWindow(topics, verdicts, before_ns, after_ns)

    def sampler(self) -> PayloadSampler | None:
        """The limits of payloads that are kept by topic; None if no topic is named."""
        topics = () if isinstance(self.payloads, bool) else self.payloads
        patterns = [each.pattern for each in _patterns("payloads", topics)]
        return PayloadSampler(patterns, self.payload_hz, self.payload_bytes_per_s) if patterns else None

    def warnings(self) -> Sequence[ConfigWarning]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        if self.trigger and not isinstance(self.payloads, tuple):
            text = "never applies: payloads names no topic, so no payload waits for a trigger"
            return (
                ConfigWarning("trigger", text, 'leave trigger out, or add payloads = ["//chassis/1234/1/*"]'),
            )
        if self.payloads or self.payload_bytes == DEFAULT_PAYLOAD_BYTES:
            return ()
        text = "never applies: payloads is false, so no payload is recorded"
        return (ConfigWarning("payload_bytes", text, "leave payload_bytes out, or add payloads = true"),)


def _patterns(key: str, topics: Sequence[str], other_words: Collection[str] = ()) -> list[NamedPattern]:
    """The topics of a list. `*` as the last part means every topic, as FFFF does. Raises ValueError."""
    found = []
    for index, topic in enumerate(topics):
        if topic in other_words:
            continue
        try:
            pattern = UUri.parse(f"{topic[:-1]}FFFF" if topic.endswith("/*") else topic)
        except UStatusError as error:
            words = f", or {', '.join(sorted(other_words))}" if other_words else ""
            raise ValueError(f"{key}[{index}]: {error.message}{words}") from error
        found.append(NamedPattern(f"{key}[{index}]", pattern))
    return found
