# SPDX-License-Identifier: Apache-2.0
"""The puts that have no receipt yet, by receiver.

In: puts, receipts, and the tokens of receivers. Out: which puts wait for too long, and which are lost.

A receiver is a streamer that gives receipts, named by its authority and its endpoint: a new process of it is the same
receiver. A put waits for the receipt of each receiver whose filters match it. It counts as lost, and is to be put again,

* if it was put before the receiver appeared, and the receiver is ready: it gave an empty receipt after that, or it is
  present for a second; or
* if there is a receipt for a put that was made a second later; or
* if it is the newest one, after 1, 2, 4... seconds (a probe, ten at most). No later put can prove its loss, and a
  receipt itself can be lost. The receipt of the probe then shows whether older puts are lost.

A receiver that is away keeps its puts for the retransmit window. Then they count as missing, and new puts no longer wait
for it. The window runs only while another subscriber receives messages that are for this receiver, too: what waits for
the first receiver to return stays for the others. With a store a process knows the receivers of the earlier process.
Each is away until its token appears.

Puts, receipts and tokens come on different threads. `AwaitedPuts` are thread-safe, a change of `_retransmissions` is one
operation of a dict, and `_lock` protects the rest. Only the monitor thread changes `missing`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from threading import Lock
from typing import ClassVar, Final

import zenoh
from zenoh.handlers import Callback

from ustreamer.transports.zenoh.receipts.awaited_puts import NEVER_NS, AwaitedPuts, Confirmed
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    EVERY_RECEIPT,
    EVERY_TOKEN,
    ID_BYTES,
    ReceiptGiverId,
    check_receipt,
    parse_receipt_key,
    parse_token_key,
    split_receipt,
    token_key,
)
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.zenoh")

MAX_AWAITED: Final = 65_536
"""Puts without a receipt, per receiver. Above it the oldest one is forgotten; the rules of links apply to it."""
MAX_RECEIVERS: Final = 16
"""Receivers of one endpoint. Above it, the rules without receipts apply to a new one."""
_MAX_TOKENS: Final = 64  # per receiver; the rules without receipts apply to further listeners
_MAX_EARLY: Final = 4_096  # receipts that come before the token of their receiver
_MAX_RETRANSMISSIONS: Final = 8  # of one put
_MAX_PROBES: Final = 10
_LOST_NS: Final = 1_000_000_000
"""A put without a receipt counts as lost if a put this much later has one."""
_STEP_NS: Final = 200_000_000
"""The steps in which a window passes: with 16 384 publishers each one takes some ms."""
_MIN_TIMEOUT_NS: Final = 50_000_000
_MAX_TIMEOUT_NS: Final = 500_000_000

_Token = tuple[str, ListenerFilters]
"""The process that announced it, and what the process gives receipts for."""


class Receiver:
    """One receiver: its tokens, and the puts that wait for its receipt. All times are monotonic, in ns."""

    __slots__ = (
        "away_ns",
        "changed_ns",
        "gone_ns",
        "has_left",
        "is_ready",
        "last_tokens",
        "newest_ns",
        "present_since_ns",
        "probes",
        "puts",
        "tokens",
    )

    def __init__(self, now_ns: int) -> None:
        self.tokens: dict[_Token, int] = {}
        """Each with the time at which it appeared. Without a token the receiver is away."""
        self.last_tokens: dict[_Token, int] = {}
        """As `tokens`, with those that ended in the last second: an outage ends all tokens, one by one.

        Of a receiver that is away, those that it had last.
        """
        self.is_ready = False
        """Whether it gave an empty receipt since it appeared: its subscribers are declared."""
        self.puts: Final = AwaitedPuts()
        """Those without a receipt. The sender adds each one just before the put."""
        self.newest_ns = 0
        """The time of the newest put with a receipt."""
        self.present_since_ns = self.changed_ns = now_ns
        self.gone_ns = NEVER_NS
        self.away_ns = 0
        """How much of the window is over, since `gone_ns`."""
        self.has_left = False
        """Whether it is away for longer than the window. It remains only as long as a put of it is blocked."""
        self.probes = 0
        """How often the newest put was made again since the last receipt."""

    def on_receipt(self, ids: bytes) -> Confirmed:
        """As `AwaitedPuts.confirm`."""
        confirmed = self.puts.confirm(ids)
        if confirmed.times:
            self.newest_ns = max(self.newest_ns, *confirmed.times)
            self.probes = 0
        return confirmed

    def lost(self, now_ns: int) -> dict[bytes, int]:
        """The puts that count as lost, with their times."""
        before_ns = self.newest_ns - _LOST_NS
        if self.is_ready or now_ns - self.present_since_ns > _LOST_NS:
            before_ns = max(before_ns, self.present_since_ns)
        return self.puts.before(before_ns) if self.tokens else {}

    def probe(self, now_ns: int) -> dict[bytes, int]:
        """The newest put and its time, if it is to be made again because no receipt comes."""
        newest = self.puts.newest
        if newest is None or not self.tokens or self.probes >= _MAX_PROBES:
            return {}
        put_ns, id = newest
        if now_ns - max(put_ns, self.present_since_ns) < _LOST_NS << self.probes:
            return {}
        self.probes += 1
        return {id: put_ns}

    def announced_ns(self, source: UUri, sink: UUri | None) -> int | None:
        """When it announced receipts for messages from `source` to `sink`; None: not at all."""
        times = (at for (_, each), at in self.last_tokens.items() if each.match_route(source, sink))
        return min(times, default=None)

    def has_announced(self, instance: str) -> bool:
        """Whether this process has a token, or is in `last_tokens`: its last receipts come after its token."""
        return any(each == instance for each, _ in self.last_tokens)


class AwaitedReceipts:
    """The receivers of one endpoint. All times are monotonic, in ns.

    `received` counts the ids in receipts, `missing` those that never came, `refused` malformed keys and
    payloads, and receivers and tokens above their bounds.
    """

    MAX_STEP_NS: ClassVar = 2 * _STEP_NS
    """At most so much of a window passes at once, also if nothing could be done for a longer time."""

    def __init__(self, instance: str, monotonic_ns: Callable[[], int], window_ns: int) -> None:
        """`instance` is this process, whose own tokens are ignored. A receiver that is away is waited for `window_ns`."""
        self.received = 0
        self.missing = 0
        self.refused = 0
        self.changed = False
        """Whether the receivers of publishers must be determined again."""
        self.are_tokens_unstored = False
        """Whether `tokens` may have changed since a store got them."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called when `changed` was set, on a thread of Zenoh."""
        self.sent_to: Callable[[], AbstractSet[Receiver]] = frozenset
        """The receivers for which messages can be put now, because a publisher of them is open."""
        self._instance = instance
        self._monotonic_ns = monotonic_ns
        self._window_ns = window_ns
        self._lock = Lock()
        self._advanced_ns = 0
        self._receivers: dict[tuple[str, str], Receiver] = {}
        self._latency_ns = 0
        """From the oldest put of a receipt to the receipt, on average."""
        self._retransmissions: dict[bytes, int] = {}
        """How often a put counted as lost, for those that wait again."""
        self._probes: AbstractSet[bytes] = frozenset()
        """Those that the last `lost` returned, which counted as no loss."""
        self._early: deque[tuple[str, bytes]] = deque(maxlen=_MAX_EARLY)
        """Receipts for puts that did not wait: the token of their receiver may still be on its way."""
        self._subscribers: list[zenoh.Subscriber[None]] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, session: zenoh.Session) -> None:
        """Follow the receivers of the network, and read their receipts. Raises zenoh.ZError if the session is closed."""

        def on_token(sample: zenoh.Sample) -> None:
            self.on_token(str(sample.key_expr), is_present=sample.kind == zenoh.SampleKind.PUT)

        def on_receipt(sample: zenoh.Sample) -> None:
            self.on_receipt(str(sample.key_expr), sample.payload.to_bytes())

        self._subscribers = [
            session.declare_subscriber(
                EVERY_RECEIPT, Callback(on_receipt, indirect=False), allowed_origin=zenoh.Locality.REMOTE
            ),
            session.liveliness().declare_subscriber(
                EVERY_TOKEN, Callback(on_token, indirect=False), history=True
            ),
        ]

    def close(self) -> None:
        """Read no more receipts. May be repeated."""
        subscribers, self._subscribers = self._subscribers, []
        for each in subscribers:
            each.undeclare()  # type: ignore[no-untyped-call]

    def tokens(self) -> list[str]:
        """The keys of the tokens of all receivers that are waited for, for `restore` of the next process."""
        with self._lock:
            return [
                token_key(ReceiptGiverId(*name, instance), filters)
                for name, receiver in self._receivers.items()
                if not receiver.has_left
                for instance, filters in receiver.last_tokens
            ]

    def restore(self, tokens: Iterable[str]) -> None:
        """Add the receivers of an earlier process. Each is away until its token appears. Call before `start`.

        Malformed keys are ignored: another version may have written them.
        """
        now_ns = self._monotonic_ns()
        for key in tokens:
            try:
                giver, filters = parse_token_key(key)
            except UStatusError:
                continue
            receiver = self._receivers.setdefault((giver.authority, giver.endpoint), Receiver(now_ns))
            receiver.last_tokens[giver.instance, filters] = now_ns
            receiver.gone_ns = now_ns

    # --- on threads of Zenoh ------------------------------------------------------------------------------------------

    def on_token(self, key: str, *, is_present: bool) -> None:
        """A token of a receiver appeared, or is gone."""
        try:
            giver, filters = parse_token_key(key)
        except UStatusError as error:
            self._refuse(error.message)
            return
        if giver.instance == self._instance:
            return
        with self._lock:
            refused = self._apply_token(giver, filters, is_present)
        if refused:
            self._refuse(refused)
        elif self.changed:
            self.on_changed()

    def _apply_token(self, giver: ReceiptGiverId, filters: ListenerFilters, is_present: bool) -> str:
        """Returns why the token is refused, or an empty text. The caller holds the lock."""
        now_ns, name = self._monotonic_ns(), (giver.authority, giver.endpoint)
        receiver = self._receivers.get(name)
        if receiver is None:
            if not is_present:
                return ""
            is_full = sum(not each.has_left for each in self._receivers.values()) >= MAX_RECEIVERS
            if is_full and not self._forget_idle():
                return f"more than {MAX_RECEIVERS} receivers"
            receiver = self._receivers[name] = Receiver(now_ns)
        token = giver.instance, filters
        if is_present and len(receiver.tokens) >= _MAX_TOKENS and token not in receiver.tokens:
            return f"more than {_MAX_TOKENS} listeners of receiver {giver.authority!r}"
        if is_present:
            if not receiver.tokens:
                receiver.present_since_ns = now_ns
                receiver.is_ready = False
            if len(receiver.last_tokens) >= 2 * _MAX_TOKENS:
                receiver.last_tokens = dict(receiver.tokens)
            receiver.tokens[token] = receiver.last_tokens[token] = now_ns
            receiver.gone_ns, receiver.has_left = NEVER_NS, False
        else:
            receiver.tokens.pop(token, None)
            if not receiver.tokens:
                receiver.gone_ns, receiver.away_ns = now_ns, 0
        receiver.changed_ns = now_ns
        self._mark_changed()
        return ""

    def _forget_idle(self) -> bool:
        """Forget the receiver that is away for the longest time and that no put waits for. False if there is none."""
        idle = [name for name, each in self._receivers.items() if not each.tokens and not len(each.puts)]
        if not idle:
            return False
        del self._receivers[min(idle, key=lambda name: self._receivers[name].gone_ns)]
        return True

    def _mark_changed(self) -> None:
        self.changed = self.are_tokens_unstored = True

    def on_receipt(self, key: str, payload: bytes) -> None:
        """A receiver gave a receipt. An empty one means that its subscribers are declared.

        It counts for the puts that wait for this receiver, and from a process with a token. One that comes before the
        token is remembered until then.
        """
        try:
            giver = parse_receipt_key(key)
            check_receipt(payload)
        except UStatusError as error:
            self._refuse(error.message)
            return
        with self._lock:
            receiver = self._receivers.get((giver.authority, giver.endpoint))
            if receiver is None or not receiver.has_announced(giver.instance):
                self._early.extend((giver.instance, id) for id in split_receipt(payload))
                return
            confirmed = receiver.on_receipt(payload)
            self._early.extend((giver.instance, id) for id in confirmed.unknown)
            if not payload:
                receiver.is_ready = self.changed = True
            if self._retransmissions:
                self._drop_retransmissions(split_receipt(payload))  # of a late receipt, too
            if confirmed.times:
                latency_ns = min(self._monotonic_ns() - min(confirmed.times), _MAX_TIMEOUT_NS)
                self._latency_ns += (latency_ns - self._latency_ns) // 8
                self.received += len(payload) // ID_BYTES - len(confirmed.unknown)
        if not payload:
            self.on_changed()

    def _refuse(self, why: str) -> None:
        with self._lock:
            self.refused += 1
            is_first = self.refused == 1
        if is_first:
            log.warning("zenoh.refused_receipt", extra={"why": why})

    # --- the puts of a publisher --------------------------------------------------------------------------------------

    def receivers_of(self, source: UUri, sink: UUri | None) -> dict[Receiver, int]:
        """The receivers whose receipt a put from `source` to `sink` waits for, with the times of their announcements.

        A filter counts for a second after its token ended. A receiver that is away counts until the window ends.
        """
        with self._lock:
            receivers = self._receivers.values()
            times = {receiver: receiver.announced_ns(source, sink) for receiver in receivers}
        return {receiver: at for receiver, at in times.items() if at is not None}

    def await_earlier(self, puts: Mapping[Receiver, Mapping[bytes, int]]) -> None:
        """Wait for the receipts of puts that were made before their publishers knew these receivers."""
        with self._lock:
            for receiver, ids in puts.items():
                early = {id for instance, id in self._early if receiver.has_announced(instance)}
                receiver.puts.add_earlier({id: put_ns for id, put_ns in ids.items() if id not in early})

    def _puts(self) -> list[AwaitedPuts]:
        return [each.puts for each in tuple(self._receivers.values())]

    def is_awaited(self, id: bytes) -> bool:
        """Whether a receipt of this put is missing."""
        return any(id in each for each in self._puts())

    def received_of(self, ids: KeysView[bytes]) -> set[bytes]:
        """Those of `ids` that wait for no receipt."""
        found = set(ids)
        if not found:
            return found
        for each in self._puts():
            each.subtract_from(found)
        return found

    def block(self, ids: Sequence[bytes]) -> None:
        """The publisher of these has lost its subscribers, and will put them again."""
        for each in self._puts():
            each.block(ids)

    def begin_retransmit(self, id: bytes) -> None:
        """This is put again now, and then waits again. Call `forget` if it does not."""
        for each in self._puts():
            each.forget((id,))

    def stop_waiting(self, id: bytes) -> list[Receiver]:
        """Wait for no receipt of this, as it is put again now. Returns the receivers that it waited for."""
        found = [each for each in tuple(self._receivers.values()) if id in each.puts]
        self.forget([id])
        return found

    def count_left(self, id: bytes, receivers: Iterable[Receiver]) -> None:
        """Count the receipts of those that have left as missing, if the new put does not wait for them."""
        self.missing += sum(each.has_left and id not in each.puts for each in receivers)

    def miss_left(self) -> set[bytes]:
        """Wait no longer for what publishers would put again for receivers that have left. Returns these puts."""
        missed = set[bytes]()
        for each in tuple(self._receivers.values()):
            if each.has_left:
                found = each.puts.all_before(NEVER_NS, frozenset())
                self._miss(each, list(found))
                missed.update(found)
        return missed

    def forget(self, ids: Sequence[bytes]) -> None:
        """Wait for no receipt of these."""
        for each in self._puts():
            each.forget(ids)
        self._drop_retransmissions(ids)

    def _drop_retransmissions(self, ids: Sequence[bytes]) -> None:
        if self._retransmissions:
            deque(map(self._retransmissions.pop, ids, repeat(None)), maxlen=0)

    # --- periodically -------------------------------------------------------------------------------------------------

    def overdue(self, now_ns: int, known: AbstractSet[bytes]) -> dict[bytes, int]:
        """The puts without a receipt for longer than usual, with their times and without those in `known`."""
        timeout_ns = min(max(2 * self._latency_ns, _MIN_TIMEOUT_NS), _MAX_TIMEOUT_NS)
        return self._waiting_before(now_ns - timeout_ns, known)

    def all_waiting(self) -> dict[bytes, int]:
        """All puts without a receipt, with their times."""
        return self._waiting_before(NEVER_NS, frozenset())

    def _waiting_before(self, before_ns: int, known: AbstractSet[bytes]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for each in self._puts():
            found.update(each.all_before(before_ns, known))
        return found

    @property
    def oldest_ns(self) -> int:
        """When the oldest put was made that a present receiver has not confirmed."""
        present = (each for each in tuple(self._receivers.values()) if each.tokens)
        return min((each.puts.oldest_ns for each in present), default=NEVER_NS)

    @property
    def oldest_kept_ns(self) -> int:
        """As `oldest_ns`, also for receivers that are away and may return: their puts must be remembered."""
        return min((each.oldest_ns for each in self._puts()), default=NEVER_NS)

    @property
    def count(self) -> int:
        """The number of missing receipts."""
        return sum(map(len, self._puts()))

    def lost(self, now_ns: int) -> dict[bytes, int]:
        """The puts that count as lost, with their times. Call `begin_retransmit` for those that are put again."""
        self._update_receivers(now_ns)
        lost: dict[bytes, int] = {}
        for each in tuple(self._receivers.values()):
            lost.update(each.lost(now_ns))
        abandoned = [id for id in lost if self._retransmissions.get(id, 0) >= _MAX_RETRANSMISSIONS]
        for id in lost:
            self._retransmissions[id] = self._retransmissions.get(id, 0) + 1
        self.abandon(abandoned)
        for id in abandoned:
            del lost[id]
        probes = dict[bytes, int]()
        for each in tuple(self._receivers.values()):
            probes.update(each.probe(now_ns))
        self._probes = probes.keys() - lost.keys()
        return lost | probes

    def postpone(self, id: bytes) -> None:
        """`lost` returned this, and it cannot be put again now."""
        if id not in self._probes:
            self._retransmissions[id] = self._retransmissions.get(id, 1) - 1

    def abandon(self, ids: Sequence[bytes]) -> None:
        """These were never confirmed, and are not put again."""
        for each in self._puts():
            others = set(ids)
            each.subtract_from(others)
            self.missing += len(ids) - len(others)
        self.forget(ids)

    def before(self, ids: Mapping[bytes, int]) -> set[bytes]:
        """The puts that are not blocked, and not newer than one of `ids` (with their times) for the same receiver."""
        found = set[bytes]()
        for each in self._puts():
            newest_ns = max((put_ns for id, put_ns in ids.items() if id in each), default=0)
            found.update(each.before(newest_ns + 1))  # all puts of a batch have the same time
        return found

    def _update_receivers(self, now_ns: int) -> None:
        """Apply ended tokens and the bounds. Wait no longer for receivers that are away for longer than the window."""
        left: list[tuple[int, tuple[str, str]]] = []
        self._advance_windows(now_ns)
        for name, receiver in tuple(self._receivers.items()):
            self._drop_retransmissions(trimmed := receiver.puts.trim(MAX_AWAITED))
            self.missing += len(trimmed)
            with self._lock:
                is_gone = not receiver.tokens and receiver.away_ns > self._window_ns
                if now_ns - receiver.changed_ns > _LOST_NS and (receiver.tokens or is_gone):
                    if len(receiver.tokens) != len(receiver.last_tokens):
                        self._mark_changed()
                    receiver.last_tokens = dict(receiver.tokens)
                receiver.has_left = is_gone
                if is_gone and not receiver.puts.has_blocked and self._receivers.get(name) is receiver:
                    del self._receivers[name]
                    self._mark_changed()
            if receiver.has_left:
                self._miss(receiver, list(receiver.puts.before(NEVER_NS)))
                if receiver.puts.has_blocked:
                    left.append((receiver.gone_ns, name))
        for gone_ns, name in sorted(left)[:-MAX_RECEIVERS]:
            with self._lock:
                left_one = self._receivers.get(name)
                if left_one is None or left_one.gone_ns != gone_ns:
                    continue  # it is back
                del self._receivers[name]
                self._mark_changed()
            self._miss(left_one, list(left_one.puts.all_before(NEVER_NS, frozenset())))

    def _advance_windows(self, now_ns: int) -> None:
        """Let the windows of the receivers pass that are away and miss what others receive.

        Else only puts that no publisher would make again are given up when they are older than the window.
        """
        step_ns = now_ns - self._advanced_ns
        if step_ns < _STEP_NS:
            return
        self._advanced_ns = now_ns
        away = [each for each in tuple(self._receivers.values()) if not each.tokens]
        sent_to = self.sent_to() if away else frozenset[Receiver]()
        for each in away:
            if each not in sent_to:
                self._miss(each, list(each.puts.before(now_ns - self._window_ns)))
                continue
            with self._lock:
                if not each.tokens:
                    each.away_ns += min(step_ns, self.MAX_STEP_NS)

    def _miss(self, receiver: Receiver, ids: Sequence[bytes]) -> None:
        """Wait no longer for these receipts of a receiver that has left. The others may still give theirs."""
        self.missing += len(ids)
        receiver.puts.forget(ids)
        if self._retransmissions:
            self._drop_retransmissions([*self.received_of(dict.fromkeys(ids).keys())])
