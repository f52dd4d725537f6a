# SPDX-License-Identifier: Apache-2.0
"""An outcome for each message and each receiver that expects it: a history and logs in, `ReceiverProof`s out. No I/O.

A message without an outcome that a promise allows is `unexplained`, and has a name: id, topic, endpoint and time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.hooks import StoredMessage
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.history import BEFORE, History, RecordedVerdict
from ustreamer_recorder.message_logs import MessageLog


class Outcome(StrEnum):
    """The end of one message for one receiver. docs/recordings.md describes each."""

    DELIVERED = "delivered"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    SUPPRESSED = "suppressed"
    DENIED = "denied"
    NO_SUBSCRIBER = "no_subscriber"
    SPOOLED = "spooled"
    RECEIVER_AWAY = "receiver_away"
    STREAMER_DOWN = "streamer_down"
    IN_MEMORY_AT_KILL = "in_memory_at_kill"
    UNEXPLAINED = "unexplained"


_BY_VERDICT: Final = {
    Verdict.THROTTLED: Outcome.THROTTLED,
    Verdict.EXPIRED: Outcome.EXPIRED,
    Verdict.DEAD_LETTERED: Outcome.DEAD_LETTERED,
    Verdict.DENIED: Outcome.DENIED,
    Verdict.NO_SUBSCRIBER: Outcome.NO_SUBSCRIBER,
}


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one message for one receiver, and the reason. `time_ms` is that of the last trace of it."""

    outcome: Outcome
    reason: str
    time_ms: int


class Unexplained(msgspec.Struct, frozen=True):
    """A message without an explanation."""

    id: UUID
    topic: str
    endpoint: str
    time_ms: int
    reason: str


class ReceiverProof(msgspec.Struct):
    """The outcomes of all messages that one receiver expects."""

    receiver: str
    endpoint: str
    outcomes: Counter[Outcome] = msgspec.field(default_factory=Counter)
    reasons: Counter[tuple[Outcome, str]] = msgspec.field(default_factory=Counter)
    repeated: int = 0
    """Messages that were received more than once."""
    most_copies: int = 0
    unexplained: list[Unexplained] = []

    @property
    def messages(self) -> int:
        return sum(self.outcomes.values())


def prove(
    history: History, receivers: Sequence[MessageLog], senders: Sequence[MessageLog]
) -> list[ReceiverProof]:
    """One proof for each receiver."""
    return [_ReceiverJudge(history, each, senders).proof() for each in receivers]


class _ReceiverJudge:
    """Finds the outcome of every message for one receiver."""

    def __init__(self, history: History, receiver: MessageLog, senders: Sequence[MessageLog]) -> None:
        self._history = history
        self._receiver = receiver
        self._senders = senders
        self._unrecorded = list(history.unrecorded_windows())
        self._expected: dict[UUri, bool] = {}
        self._last_settled_ms = self._last_settled()

    def proof(self) -> ReceiverProof:
        proof = ReceiverProof(self._receiver.name, self._receiver.endpoint)
        sent = (id for sender in self._senders for id in sender.copies)
        for id in dict.fromkeys([*self._history.ids(), *sent, *self._receiver.copies]):
            finding = self._finding(id)
            if finding is not None:
                self._add(proof, id, finding)
        return proof

    def _add(self, proof: ReceiverProof, id: UUID, finding: Finding) -> None:
        proof.outcomes[finding.outcome] += 1
        copies = self._receiver.copies.get(id, 0)
        proof.repeated += copies > 1
        proof.most_copies = max(proof.most_copies, copies)
        if finding.outcome is Outcome.UNEXPLAINED:
            address = self._address_of(id)
            topic = "?" if address is None else str(address)
            proof.unexplained.append(
                Unexplained(id, topic, self._receiver.endpoint, finding.time_ms, finding.reason)
            )
        if finding.reason:
            proof.reasons[finding.outcome, finding.reason] += 1

    # --- one message --------------------------------------------------------------------------------------------------

    def _address_of(self, id: UUID) -> UUri | None:
        address = self._history.address_of(id)
        sent = (sender.addresses[id] for sender in self._senders if id in sender.addresses)
        return next(sent, None) if address is None else address

    def _is_expected(self, address: UUri) -> bool:
        known = self._expected.get(address)
        if known is None:
            known = self._expected[address] = any(each.matches(address) for each in self._receiver.expects)
        return known

    def _finding(self, id: UUID) -> Finding | None:
        """The outcome; None if the receiver does not expect this message."""
        all_rows = self._history.rows.get(id, [])
        rows = [each for each in all_rows if self._is_for_receiver(each)]
        if id in self._receiver.copies:
            return self._received(id, rows)
        address = self._address_of(id)
        if address is None or not self._is_expected(address):
            return None
        rows = rows or [each for each in all_rows if each.egress is None]
        letter = _first(
            self._history.dead_letters.get(id, ()), self._receiver.endpoint, any_endpoint=not rows
        )
        spooled = _first(self._history.spooled.get(id, ()), self._receiver.endpoint)
        if rows or letter or spooled:
            return self._recorded(rows, letter, spooled, id)
        if all_rows:
            time_ms = all_rows[-1].settled_ms
            if not self._receiver.is_ready(all_rows[-1].arrived_ms):
                return None
            return Finding(Outcome.NO_SUBSCRIBER, f"no target at {self._receiver.endpoint}", time_ms)
        return self._without_trace(id, address)

    def _is_for_receiver(self, row: RecordedVerdict) -> bool:
        subscriber = self._receiver.subscriber
        return row.egress == self._receiver.endpoint and (subscriber is None or row.subscriber == subscriber)

    def _received(self, id: UUID, rows: Sequence[RecordedVerdict]) -> Finding:
        received_ms = self._receiver.times_ms[id]
        if rows or id in self._history.spooled or id in self._history.dead_letters:
            return Finding(Outcome.DELIVERED, "", received_ms)
        created_ms = min(id.time_ms, received_ms)
        if any(each.since_ms <= received_ms and created_ms <= each.until_ms for each in self._unrecorded):
            return Finding(Outcome.DELIVERED, "", received_ms)
        return Finding(Outcome.UNEXPLAINED, "received, and not recorded", received_ms)

    def _recorded(
        self,
        rows: Sequence[RecordedVerdict],
        letter: StoredMessage | None,
        spooled: StoredMessage | None,
        id: UUID,
    ) -> Finding | None:
        """The outcome of a message that was not received, by what the files have of it."""
        sent = [each for each in rows if each.verdict is Verdict.DELIVERED]
        arrived_ms = rows[-1].arrived_ms if rows else id.time_ms
        if self._receiver.is_before_or_after(arrived_ms) and not sent:
            return None
        reason = "" if letter is None or letter.status is None else str(letter.status)
        if rows and not sent:
            last = rows[-1]
            outcome = _BY_VERDICT[last.verdict]
            if outcome is Outcome.DEAD_LETTERED and letter is None:
                outcome = Outcome.SUPPRESSED
            return Finding(outcome, reason or last.reason, last.settled_ms)
        if letter is not None:
            return Finding(Outcome.DEAD_LETTERED, reason, arrived_ms)
        if spooled is not None:
            return Finding(Outcome.SPOOLED, "", arrived_ms)
        settled_ms = sent[-1].settled_ms
        if self._receiver.is_before_or_after(settled_ms):
            return None
        if not self._is_ready(settled_ms, sent[-1].sent_ms):
            return Finding(Outcome.RECEIVER_AWAY, "", settled_ms)
        return Finding(Outcome.UNEXPLAINED, "delivered, and not received", settled_ms)

    def _last_settled(self) -> dict[int, int]:
        """For each life that a kill ended, by its start: when its last message was delivered by the streamer.

        A message that was delivered then or later was on its way. The time of its receipt says nothing about it.
        """
        killed = [each for each in self._receiver.lives if each.was_killed]
        last_ms = {each.since_ms: each.since_ms for each in killed}
        for id, received_ms in self._receiver.times_ms.items() if killed else ():
            life = next((each for each in killed if each.since_ms <= received_ms <= each.last_ms), None)
            for row in self._history.rows.get(id, ()) if life is not None else ():
                if life is not None and row.verdict is Verdict.DELIVERED and self._is_for_receiver(row):
                    last_ms[life.since_ms] = max(last_ms[life.since_ms], row.settled_ms)
        return last_ms

    def _is_ready(self, settled_ms: int, sent_ms: int) -> bool:
        """Whether the receiver must have received a message that the streamer sent and settled at these times.

        A message sent in the millisecond of a start may have been before it.
        """
        return not self._receiver.is_absent(settled_ms) and any(
            life.since_ms < sent_ms
            and (
                settled_ms < self._last_settled_ms[life.since_ms]
                if life.was_killed
                else life.until_ms is None or settled_ms <= life.until_ms
            )
            for life in self._receiver.lives
        )

    def _without_trace(self, id: UUID, address: UUri) -> Finding | None:
        """The outcome of a message that is in the log of a sender only."""
        sent_ms = min(sender.times_ms[id] for sender in self._senders if id in sender.times_ms)
        if self._receiver.is_before_or_after(sent_ms):
            return None
        for window in self._history.windows(self._receiver.endpoint, address):
            if window.since_ms <= sent_ms <= window.until_ms:
                if window.cause == BEFORE:
                    return None
                return Finding(Outcome(window.cause), "", sent_ms)
        in_gap = any(each.since_ms <= sent_ms <= each.until_ms for each in self._history.gaps)
        reason = "sent, and its row is in a gap" if in_gap else "sent, and not recorded"
        return Finding(Outcome.UNEXPLAINED, reason, sent_ms)


def _first(
    messages: Iterable[StoredMessage], endpoint: str, *, any_endpoint: bool = False
) -> StoredMessage | None:
    return next((each for each in messages if any_endpoint or each.endpoint == endpoint), None)
