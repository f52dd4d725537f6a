# SPDX-License-Identifier: Apache-2.0
"""The port of a transport: what a transport must do, what it may do, and what it receives from the streamer.

A transport is a kind (`TransportKind`) that a plugin names in `ustreamer_transports`. The host makes one
`EndpointTransport` per section `[endpoints.<name>]`. A transport on a network that several streamers share can also
implement `PeerTransport` and `PeerTopicTransport`.
"""

import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, runtime_checkable

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.decoder import Decoder
from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.core.routing.access import AccessRules
from ustreamer.core.routing.identity import Identity
from ustreamer.core.routing.subscriptions import Subscription, SubscriptionDirectory
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

UNBOUNDED: Final = 1 << 62


class BoundAddress(msgspec.Struct, frozen=True):
    """An address that an endpoint binds. `key` is its place in the section, such as "listen[0]".

    Port 0 is any free port. `host` is an IP address, or a name, which is not resolved; of a Unix socket, its path.
    A socket at `::` accepts IPv4 too, as Linux has it by default, unless it is `ipv6_only`.
    """

    key: str
    protocol: Literal["tcp", "udp", "unix"]
    host: str
    port: int = 0
    ipv6_only: bool = False

    def conflicts_with(self, other: "BoundAddress") -> bool:
        """Whether the two sockets cannot be open at once."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        if self.protocol == "unix":
            return os.path.realpath(self.host) == os.path.realpath(other.host)
        return self.port != 0 and (self.covers(other) or other.covers(self))

    def covers(self, other: "BoundAddress") -> bool:
        """Whether this is the address of `other`, or a wildcard for it. A name stands for an address of IPv4."""
        one, two = _ip_address(self.host), _ip_address(other.host)
        if one is None:
            return self.host == other.host
        if not one.is_unspecified:
            return one == two
        version = 4 if two is None else two.version
        return one.version == version or (one.version == 6 and not self.ipv6_only)

    def __str__(self) -> str:
        if self.protocol == "unix":
            return f"the Unix socket {self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol.upper()} {host}:{self.port}"


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    """The address as a socket has it; None for a name."""
    try:
        found = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, an IP address or a name."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def readable_by_all(path: Path) -> bool:
    """Whether every user of this machine may read a file; False for a directory."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IROTH) and not stat.S_ISDIR(mode)


class ConfigWarning(NamedTuple):
    """A setting that works and is probably a mistake; `advice` is a clause or "".

    `key` is its place in the section, "" for the section. A warning about a key that the file does not have is left out.
    """

    key: str
    text: str
    advice: str = ""


class PrivateFile(NamedTuple):
    """A file with a private key. `key` is its place in the section, such as "tls.key"."""

    key: str
    path: Path


class NamedPattern(NamedTuple):
    """A UUri or UUri pattern in a section. `key` is its place, such as "access[0].sink"."""

    key: str
    pattern: UUri


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of every section `[endpoints.<name>]`. Each transport adds its own keys.

    `authorities` live behind the endpoint; `"*"` stands for all authorities that no other endpoint names.
    `access` has the rules for incoming messages. The endpoint accepts one copy of a message whose id repeats within
    `duplicate_window` other messages. The egress queue of a `durable` endpoint is kept on disk.

    The methods tell the configuration check what the keys mean. A transport extends them for its own keys.
    """

    transport: str
    authorities: Annotated[tuple[str, ...], msgspec.Meta(examples=[["vehicle"]])]
    access: AccessRules = ()
    duplicate_window: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    durable: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a rule about a sender that the network cannot verify. A subclass calls it, too."""
        check_sender_rules(self.access, self.known_identities())

    def in_force(self) -> Self:
        """The section with the values that apply in place of absent keys."""
        return self

    def known_identities(self) -> Sequence[Identity] | None:
        """The identities that the section names; None if the network authenticates no sender."""
        return None

    def identities_of(self, source: UUri) -> frozenset[Identity] | None:
        """The identities that may send from `source`: one of them sent such a message. None: any host may.

        The router calls this when a route is built. The transport has to refuse a message whose verified sender is
        none of them.
        """
        return None

    def bound_addresses(self) -> Sequence[BoundAddress]:
        """The addresses that `open` binds, as far as this section names them. No two endpoints may bind one address."""
        return ()

    def remote_key(self) -> str:
        """The key that lets other machines reach the endpoint, or the endpoint reach them; "" if none does."""
        networks = (each for each in self.bound_addresses() if each.protocol != "unix")
        return next((each.key for each in networks if not is_loopback(each.host)), "")

    def private_files(self) -> Sequence[PrivateFile]:
        """The files in the section that only the user of the streamer may read: keys."""
        return ()

    def patterns(self) -> Sequence[NamedPattern]:
        """The UUris in the section, to warn of an authority that lives behind no endpoint."""
        return [
            NamedPattern(f"access[{index}].{key}", pattern)
            for index, rule in enumerate(self.access)
            for key, text, pattern in zip(
                ("source", "sink"), (rule.source, rule.sink), rule.patterns, strict=True
            )
            if text is not None
        ]

    def warnings(self) -> Sequence[ConfigWarning]:
        """Settings of the section that are probably mistakes."""
        return ()


def check_sender_rules(rules: AccessRules, known: Sequence[Identity] | None) -> None:
    """ValueError naming a rule about an identity or a role that is not among `known` ones."""
    for index, rule in enumerate(rules):
        for key, value in (("identity", rule.identity), ("role", rule.role)):
            if value is None:
                continue
            if known is None:
                raise ValueError(
                    f"access[{index}].{key}: the network authenticates no sender; leave {key} out"
                )
            names = sorted({each.name if key == "identity" else each.role for each in known} - {""})
            if value not in names:
                raise ValueError(
                    f"access[{index}].{key}: {value!r} is not known here; have: {', '.join(names) or 'none'}"
                )


def _no_decoder(topic: UUri) -> Decoder | None:
    return None


class EndpointContext(msgspec.Struct, frozen=True):
    """The surroundings of one endpoint: its name, the authority of the streamer, the clock, payload decoders.

    `decoder(topic)` returns the decoder of a plugin. Call it once per topic, and not in the constructor of a transport.
    `serves` lists the authorities whose uSubscription is in this streamer. `topics()` returns the topics that the
    configuration names at any endpoint (`EndpointTransport.topics`); call it in `open` or later.
    `instance` is the id of the streamer's process in its announcements; "" if there is none.
    `sibling_authorities` live behind the other endpoints of the streamer that have the same transport.
    `state_dir` is the directory of the streamer; None: nothing is kept on disk. An endpoint writes only when it is open,
    and reports in `stores` what the disk refuses.
    """

    name: str
    authority: str
    clock: Clock
    decoder: Callable[[UUri], Decoder | None] = _no_decoder
    serves: tuple[str, ...] = ()
    topics: Callable[[], Collection[UUri]] = tuple
    instance: str = ""
    sibling_authorities: frozenset[str] = frozenset()
    state_dir: Path | None = None
    stores: StoreStates = msgspec.field(default_factory=StoreStates)


class RouteUnavailable(UStatusError):
    """UNAVAILABLE for the route of one message only: its receiver is away, other receivers may be reachable.

    `route` is the transport's own key of the blocked route. Messages refused with an equal key wait for the same route.
    A transport that knows whether a receiver exists gives `absent_from_ns`. From this monotonic time on, a refused
    Request gets an error Response instead of another try. Before `expected_until_ns` the refusal is ordinary, because
    the receiver was not found yet: it is logged at level info.
    """

    def __init__(
        self, route: Hashable, message: str, absent_from_ns: int | None = None, expected_until_ns: int = 0
    ) -> None:
        super().__init__(UCode.UNAVAILABLE, message)
        self.route = route
        self.absent_from_ns = absent_from_ns
        self.expected_until_ns = expected_until_ns


class SubscriberEnded(UStatusError):
    """NOT_FOUND for a publication whose only subscriber has ended, before all components know that it ended.

    The ledger counts NO_SUBSCRIBER. There is no retry and no dead letter.
    """

    def __init__(self, subscriber: UUri) -> None:
        super().__init__(UCode.NOT_FOUND, f"subscriber {subscriber} has ended")


class Unconfirmed(NamedTuple):
    """Sent messages that are not known to have arrived, in order of their sends; some may have arrived.

    `forgotten`: at most so many further ones. The transport has no copy of them, and some may have arrived. `stored`: the
    ids of further ones that only the `SentStore` has. Their records stay for the next start.
    """

    messages: Sequence[UMessage] = ()
    forgotten: int = 0
    stored: Collection[UUID] = ()


class ReceivingThread(msgspec.Struct, frozen=True):
    """A thread that receives messages. `turns` increases while it works; `waiting` is true while it waits for input."""

    name: str
    turns: int
    waiting: bool


_NEVER_NS: Final = 1 << 62
SENT_FROM_DISK_NS: Final = 1_000_000_000
"""How long `SentStore.sent_from_disk` has a message after its send."""


class SentStore(Protocol):
    """Keeps sent messages on disk, so that they survive a kill. A durable endpoint has one."""

    def keep(self, route: Hashable, messages: Sequence[UMessage]) -> Collection[UUID] | None:
        """Keep these, in order of their sends on `route`, until `release(route)`. A message is kept once per route.

        Returns the ids of those that are kept; the others are above the limits of the store. None: the store is busy, and
        the caller should try again. Waits 25 ms at most.
        """
        ...

    def ids(self) -> Collection[UUID]:
        """The sent messages that are or soon will be on disk.

        They were given to `keep`, or were on disk before they were sent and have no receipt yet.
        """
        ...

    def sent_from_disk(self, ids: Collection[UUID]) -> Sequence[UMessage]:
        """Of these, messages that were on disk before they were sent, and have no receipt.

        They stay there for `SENT_FROM_DISK_NS`.

        Not all of them if they are large or the store is busy: the caller should try again. Waits as `keep`.
        """
        ...

    def read(self, route: Hashable, id: UUID) -> UMessage | None:
        """A message kept for `route`; None if it is not there, or cannot be read. Waits for no commit."""
        ...

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        """Messages kept for `route` have arrived, or are no longer owed: all, or those with `ids`.

        False: the store is busy, as in `keep`.
        """
        ...

    def receivers(self) -> Sequence[str]:
        """The receivers of an earlier process, as it gave them to `keep_receivers` last."""
        ...

    def keep_receivers(self, receivers: Sequence[str]) -> bool:
        """Keep these instead of the earlier ones: the receivers that must confirm messages, each in a form of the transport.

        They survive a kill a commit later. False: the store is busy, as in `keep`.
        """
        ...


class ReceivedStore(Protocol):
    """Keeps the ids of received messages on disk, so that a streamer that was killed recognizes copies of them.

    A durable endpoint that gives receipts has one. An id is a byte string of 17 bytes.
    """

    def load(self) -> Sequence[bytes]:
        """Open the store, and return the ids that earlier processes added last."""
        ...

    def restored(self) -> Sequence[UUID]:
        """The messages of this endpoint that earlier processes left on disk, and that are sent now; once.

        A kill after their write may come before `add`.
        """
        ...

    def safe_before_ns(self) -> int:
        """Messages received before this time were sent on, or are on disk."""
        ...

    def add(self, ids: bytes) -> None:
        """Add joined ids; the oldest ones go. They survive a kill on return, and a power cut within 1 s. Never raises."""
        ...

    def close(self) -> None:
        """Close the store. May be repeated."""
        ...


class EndpointTransport(UTransport):
    """A UTransport with a life cycle: one object per section `[endpoints.<name>]`, with its own socket or session.

    Listeners can be registered before and after `open`. The transport calls them on its own threads. An endpoint does
    not deliver its own messages to its own listeners.
    """

    unicast: ClassVar[bool] = False
    """True: each subscriber is a delivery target. False: all subscribers behind the endpoint are one target."""
    inline: ClassVar[bool] = False
    """True: `send` never waits, so the thread that received a message can always call it."""
    loss_counters: ClassVar[Sequence[str]] = ()
    """The counters of `statistics` for messages that are or may be lost, and that the ledger does not have as lost.

    The last log line of a run has those that are not 0.
    """

    def send_window(self) -> int:
        """Bytes that `send` accepts from now on without waiting, if no other thread sends; 0 if unknown.

        The receiving thread sends up to this many bytes; a thread of the egress queue sends the rest. The queue reads
        the window again after 256 KB (not if it is UNBOUNDED) and after a link-up. Each payload counts 200 bytes extra.
        """
        return UNBOUNDED if self.inline else 0

    def problems(self) -> Sequence[str]:
        """Reasons why `open` would fail, as far as a check without side effects can find them."""
        return ()

    def warnings(self) -> Sequence[str]:
        """Faults of the configuration with which `open` succeeds. `ustreamer check` shows them."""
        return ()

    def file_addresses(self) -> Sequence[BoundAddress]:
        """The addresses that `open` binds and that stand in a file which the section names, as far as it can be read."""
        return ()

    @abstractmethod
    def open(self) -> None:
        """Bind, connect, start to receive. Raises UStatusError(UNAVAILABLE) that names the missing resource."""

    def reconfigure(self, config: Any) -> None:
        """Take a section whose `reloadable_keys` have changed. `subscriptions` are the new ones when this returns."""

    @abstractmethod
    def stop_receiving(self) -> None:
        """Accept no more messages, so that accepted messages can drain. `send` still works. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent; also valid for an endpoint that was never opened."""

    def finish(self) -> Unconfirmed:
        """Return the sent messages that are not known to have arrived. It may close the connections to find out.

        The streamer calls this at a stop, when only error Responses are still to be sent, and `close` later. A durable
        endpoint keeps the messages on disk for the next start; others make dead letters of them. The default knows of
        none.
        """
        return Unconfirmed()

    def keep_unconfirmed(self, store: SentStore) -> None:
        """Keep sent messages in `store` while they may not have arrived: from the first doubt until the doubt ends.

        The streamer calls this before `open`, for a durable endpoint. The default keeps none.
        """

    def keep_received(self, store: ReceivedStore) -> None:
        """Keep the ids of received messages in `store`, if the transport gives receipts for messages.

        The streamer calls this before `open`, for a durable endpoint. The default gives no receipts.
        """

    def awaits_receipt(self, id: UUID) -> bool:
        """Whether a sent message may not have arrived: its receiver gives receipts, and has given none for it.

        A durable queue keeps the record of such a message. Called under its lock.
        """
        return False

    def unstored_since_ns(self) -> int:
        """The monotonic time since which sent messages may be lost and are not in the `SentStore` yet.

        A durable queue keeps their records, and its streamer gives no receipts for them. Called under its lock. The
        default, a time that never comes: a message has arrived some ms after its send.
        """
        return _NEVER_NS

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        """The send function for one subscriber of a unicast transport; None: for the sink that each message names.

        The function raises RouteUnavailable if one route is down: the egress queue then blocks that route only.
        UNAVAILABLE blocks the queue of this `subscriber` and no other. SubscriberEnded: the subscriber of a publication
        has ended. One thread sends for all subscribers, so the function must not wait for one of them.
        """
        return self.send

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        """As `transmitter`, for a batch, where a batch is cheaper. The function returns how many messages it sent."""
        transmit = self.transmitter(subscriber)

        def transmit_batch(messages: Iterable[UMessage], /) -> int:
            sent = 0
            for message in messages:
                try:
                    transmit(message)
                except Exception:  # noqa: BLE001  # the queue sends this message again, alone, and handles the error
                    break
                sent += 1
            return sent

        return transmit_batch

    def has_listener(self, attributes: UAttributes) -> bool:
        """Whether a publication with these attributes has a receiver behind the endpoint; True if that is not known.

        The streamer asks before it sends a broadcast topic to a multicast domain without a subscriber. From any thread,
        under locks of the path, so it does not wait. The default does not know.
        """
        return True

    def prepare_topic(self, topic: UUri) -> None:
        """`topic` has a subscriber behind the endpoint: its first message may follow. Does not wait and never raises.

        The streamer calls this for up to MAX_OWN_ADVERTISEMENTS topics, from any thread, and may repeat it.
        """

    def subscriptions(self) -> Sequence[Subscription]:
        """Subscriptions from the configuration of the endpoint, for receivers that cannot subscribe."""
        return ()

    def topics(self) -> Sequence[UUri]:
        """Topics published behind the endpoint, as far as its configuration names them."""
        return ()

    def receives_topic(self, topic: UUri) -> bool:
        """Whether publications of `topic` can come in here, as far as the configuration decides it."""
        return True

    def knows_method(self, method: UUri) -> bool | None:
        """Whether the configuration has a method: of a server behind the endpoint, or of a service offered there.

        False: the endpoint refuses each call of it, in either direction. None: the configuration does not decide it.
        """
        return None

    def field_values(self, topic: UUri) -> Sequence[UMessage]:
        """The last values of the fields behind the endpoint that `topic` matches, each as a new publication.

        The streamer sends them to each new subscriber. Called from any thread; the default has no fields.
        """
        return ()

    def sends_field(self, topic: UUri) -> bool:
        """Whether the endpoint itself sends the value of a field to its new subscribers, so the streamer must not."""
        return False

    def input_problem(self, topic: UUri) -> str:
        """A sentence about recent publications of `topic` that failed a check of their content; "" if none did.

        `ustreamer why` shows it. Called from any thread.
        """
        return ""

    def recent_failures(self, address: UUri) -> Sequence[RecentFailure] | None:
        """What this endpoint refused lately of messages from or to `address`, and how calls of it failed.

        None if the endpoint cannot tell by address: `ustreamer why` then uses its counters `refused_<reason>`. Kinds
        besides these reasons: `error_response` (`detail` is the error), `no_answer`, `service_gone`;
        `request_expired`, of a request from here; `receiver_unreachable`, where `peer` is its address; and
        `service_not_offered`, a state of now. Called from any thread.
        """
        return None

    def refused_by_peer(self) -> Mapping[tuple[str, str], int]:
        """Refused input by (reason, peer): as `statistics` counts it under `refused_<reason>`, for peers it knows.

        A bounded part is enough. The streamer reads it once a second and reports peers that are refused often.
        """
        return {}

    def subscription_directory(self, changed: Callable[[], None]) -> SubscriptionDirectory | None:
        """Subscriptions behind the endpoint that no uSubscription holds; None: there are none.

        The router does not read its `version`, so the directory costs nothing per message. Call `changed` after every
        change, from any thread, with no lock held. It invalidates all cached routes.
        """
        return None

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        """Call `changed(True)` when a receiver becomes reachable, and `changed(False)` when the last one is lost.

        The streamer calls this before `open`. `open` reports the first state, up or down, as soon as `send` works.
        `changed` runs on a thread of the transport or of `open` and is quick. The default never calls it.
        """

    def link_problem(self) -> str:
        """`receiver_stalled` if receivers have stopped reading: all, and the link is down, or the last ones of some route.

        "" if nothing is known. Called from any thread.
        """
        return ""

    def receiver_stalled_ms(self, address: UUri) -> int | None:
        """When the last receiver of messages from `address`, or to it, was lost that had stopped reading.

        In ms since the epoch; None if there is no such receiver, or nothing is known. Called from any thread.
        """
        return None

    def link_suspicion(self) -> str:
        """A clause about a receiver that may be frozen or cut off, while the link counts as up; "" if there is none.

        It begins with the receiver, such as "1 of 2 nodes has ...". It states what is measured: on a busy machine the
        receiver may only be slow. Called from any thread.
        """
        return ""

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        """Call `opened` with a `RouteUnavailable.route` when that route is open again, for an immediate retry.

        The streamer calls this before `open`. `opened` runs on a thread of the transport and is quick. Without it the
        egress queue retries a blocked route by its retry delay.
        """

    def call_when_read(self, action: Callable[[], None]) -> None:
        """Call `action` once, when the listeners have received all publications that have arrived by now.

        From any thread; does not wait. `action` runs on any thread and is quick. It may come late or never: only further
        messages show that a receiving thread has read all earlier ones. The default never calls it.
        """

    def receiving_threads(self) -> Sequence[ReceivingThread]:
        """The progress of the receiving threads, for health checks. From any thread, without a lock of the path.

        A thread that neither waits nor has another number of turns hangs. The default has no thread to check.
        """
        return ()

    @abstractmethod
    def statistics(self) -> Mapping[str, int]:
        """Counters of this moment, among them one `refused_<reason>` per reason to refuse input.

        Without a lock of the path. A name that ends in `_now`, `_open`, `_waiting` or `_bytes` is a present value; any
        other counts from the start and never decreases.
        """


@runtime_checkable
class PeerTransport(Protocol):
    """A transport on whose network other streamers (peers) can be, and which carries their announcements."""

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """Announce exactly this set to the peers on this network from now on.

        The streamer calls this when all endpoints are open, and at a reload. `stop_receiving`, `close` and the end of
        the process withdraw all announcements.
        """
        ...

    def watch_peers(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        """Call `changed` with all announcements on this network after every change.

        The streamer calls this before `open`. `changed` runs on a thread of the transport and takes as long as one
        message. The transport refuses and counts unreadable announcements, and bounds how many it keeps.
        """
        ...

    def trust_peers(self, is_trusted: Callable[[RouterId, str], bool]) -> None:
        """Stand by for a peer only where `is_trusted(peer, authority)` is true: the peer does reach `authority`.

        The streamer calls this after `announce` and whenever the result may have changed, from any thread. `is_trusted`
        can be called on any thread and does not wait. A transport that never stands by for a peer ignores it.
        """
        ...


@runtime_checkable
class PeerTopicTransport(Protocol):
    """A `PeerTransport` of a multicast domain, which also carries topic advertisements."""

    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        """Advertise exactly these topics to the peers on this network: this streamer forwards them. Does not wait.

        The streamer calls this after `announce`, whenever the set has changed. Until a peer receives an advertisement,
        the peer forwards the topic as well. Whatever withdraws the announcements withdraws the advertisements.
        """
        ...

    def watch_topic_advertisements(
        self, changed: Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]
    ) -> None:
        """Call `changed(added, removed)` after every change of the advertisements, as in `watch_peers`."""
        ...


class TransportKind(msgspec.Struct, frozen=True):
    """A kind of transport: the type of its configuration section and the factory of its endpoints.

    `factory(config, context)` has no side effects. It is the place to import a heavy library.
    """

    config: type[EndpointConfig]
    factory: Callable[[Any, EndpointContext], EndpointTransport]
    has_usubscription: bool | Callable[[Any], bool] = True
    """Whether the network behind it has a uSubscription of its own; if not, the streamer serves its authorities.

    A function decides by the configuration of the endpoint.
    """
    reloadable_keys: frozenset[str] = frozenset()
    """The keys of a section that a reload may change, if `restart_reason` agrees. It calls `reconfigure`."""
    restart_reason: Callable[[Any, Any], str] = lambda old, new: ""
    """Why a section cannot change from `old` to `new` without a restart; "" if it can."""
    outlives_streamer: bool = True
    """Whether receivers behind it still exist after a restart of the streamer; if not, nothing is kept for them."""

    def provides_usubscription(self, config: EndpointConfig) -> bool:
        """Whether the network behind the endpoint of this configuration has a uSubscription of its own."""
        answer = self.has_usubscription
        return answer if isinstance(answer, bool) else answer(config)
