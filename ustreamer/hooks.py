# SPDX-License-Identifier: Apache-2.0
"""Everything a plugin can do: its hooks. docs/plugins.md shows each of them at work.

The host calls hooks at start, reload and shutdown only. Per message the host calls the objects that the hooks returned.
A plugin is a class named by an entry point of the group "ustreamer". The host makes one instance if the configuration
has a section `[plugins.<name>]`:

    class MyPlugin:
        class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...
        def __init__(self, config: Config, context: PluginContext) -> None: ...   # no side effects

A plugin imports this module, `ustreamer.core`, `ustreamer.uprotocol`, and `ustreamer.transport_port` if it brings a
transport. It never imports the host, a transport or another plugin.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import pluggy

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.decoder import Decoder
from ustreamer.core.base.links import LinkStates
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, LedgerSnapshot
from ustreamer.core.delivery.ports import Filter, Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.identity import Peer
from ustreamer.core.routing.router import Router
from ustreamer.core.routing.subscriptions import SubscriptionDirectory, SubscriptionWatch
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.transport_port import ConfigWarning, EndpointConfig, NamedPattern, PrivateFile, TransportKind
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

PROJECT: Final = "ustreamer"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class PluginContext(msgspec.Struct, frozen=True):
    """The surroundings of a plugin in its streamer.

    `authority` is the streamer's own. `serves` lists the authorities whose uSubscription is in this streamer: its own
    and those behind transports without a uSubscription. `state_dir` may not exist yet. `schedule` makes a call at a
    monotonic time in ns, on a host thread that must not wait. `links` has the reachability of authorities.
    `authorities` are all that the configuration names; read it each time, because a reload changes it.
    `ledger()` returns the counts of one moment; call it on a thread of the plugin, not in a filter or a tap. `stores`
    shows operators which stores the disk refuses to write. `peer_of(source)` returns the verified sender of accepted
    messages from a source.
    """

    authority: str
    serves: tuple[str, ...]
    state_dir: Path
    clock: Clock
    schedule: Schedule
    links: LinkStates = msgspec.field(default_factory=LinkStates)
    authorities: Collection[str] = ()
    ledger: Callable[[], LedgerSnapshot] = lambda: EMPTY_LEDGER
    stores: StoreStates = msgspec.field(default_factory=StoreStates)
    peer_of: Callable[[UUri], Peer] = lambda source: Peer("")


class StreamerSettings(msgspec.Struct, frozen=True):
    """The settings in force: the limits of each endpoint's egress queue, and the section of each enabled plugin."""

    egress: Mapping[str, EgressLimits]
    plugins: Mapping[str, msgspec.Struct]


class StoredMessage(msgspec.Struct, frozen=True):
    """A message in a file of a streamer, without its payload.

    `endpoint` is the egress endpoint. `status` is the reason of a dead letter.
    """

    id: UUID
    attributes: UAttributes
    endpoint: str
    subscriber: str | None = None
    status: UStatus | None = None


class StoredMessages(msgspec.Struct, frozen=True):
    """The messages in a state directory: those in the spool of each durable endpoint, and the dead letters."""

    spooled: Mapping[str, Sequence[StoredMessage]] = {}
    dead_letters: Sequence[StoredMessage] = ()


ReadStoredMessages: TypeAlias = Callable[[Path], StoredMessages]
"""Reads a state directory, with or without a running streamer. Raises StoreDamaged."""


class Networks(Protocol):
    """The networks of a configuration, as their nodes see them."""

    authority: str
    """The streamer's own authority."""
    clock: Clock

    def publish(self, message: UMessage) -> None:
        """Send a publication from the network of its source. Raises UStatusError: UNIMPLEMENTED, UNAVAILABLE."""

    def settle(self) -> None:
        """Wait until the streamer has delivered what was published."""

    def call(self, source: UUri, method: UUri, payload: bytes) -> None:
        """Call a method with a protobuf payload as `source`, and wait for the response. Raises UStatusError."""


OpenNetworks: TypeAlias = Callable[[Path], AbstractContextManager[Networks]]
"""Connects to the networks of a configuration file, next to a running streamer. Raises UStatusError."""


RequestPlugin: TypeAlias = Callable[[Path, str, Mapping[str, Any]], Any]
"""Sends a request to a plugin of the streamer that runs on a state directory: its method `handle_request`.

Arguments: the directory, the name of the plugin, the request as JSON. Raises UStatusError: UNAVAILABLE if none runs.
"""


class OfflineRouting(msgspec.Struct, frozen=True):
    """The decisions of a configuration file, without its networks: the router, and the filters of its plugins."""

    router: Router
    """Without peers. Its subscriptions are those that `LoadRouting` was given, and those of the file."""
    unicast: Mapping[str, bool]
    """By endpoint, the streamer's own included: whether each subscriber is a target of its own."""
    filters: Callable[[Delivery], Iterable[Filter]]
    limits: Mapping[str, EgressLimits]
    fixed_endpoints: frozenset[str]
    """The endpoints whose subscriptions are all in the file."""
    receives_topic: Callable[[str, UUri], bool] = lambda endpoint, topic: True
    """Whether publications of a topic can come in at an endpoint, as far as the file decides it."""
    knows_method: Callable[[str, UUri], bool | None] = lambda endpoint, method: None
    """As `EndpointTransport.knows_method`, by endpoint."""


LoadRouting: TypeAlias = Callable[[Path, SubscriptionDirectory], OfflineRouting]
"""Builds the routing of a configuration file, with these subscriptions. Nothing is opened. Raises the errors of `check`."""


class EndpointProvider(Protocol):
    """A plugin's Config that adds endpoints, so that the configuration file does not repeat them."""

    def endpoints(self, authority: str) -> Mapping[str, EndpointConfig]:
        """The endpoints by name, for a streamer of this authority. They count as if the file had them."""
        ...


class ReviewedConfig(Protocol):
    """A plugin's Config that helps `ustreamer check` to warn. Each method is optional."""

    def patterns(self) -> Sequence[NamedPattern]:
        """The UUris in the section, to warn of an authority that lives behind no endpoint."""
        ...

    def warnings(self) -> Sequence[ConfigWarning]:
        """Settings of the section that are probably mistakes."""
        ...

    def private_files(self) -> Sequence[PrivateFile]:
        """The files in the section that only the user of the streamer may read: keys."""
        ...


class HostedService(Protocol):
    """uEntities that the streamer hosts, such as core.usubscription."""

    @property
    def entities(self) -> Sequence[UUri]:
        """The addresses of the entities (resource 0, any version). Messages to them stay in this process."""
        ...

    def start(self, bus: UTransport) -> None:
        """Open resources and register listeners on `bus`; runs before the first message is accepted.

        The host calls the listeners one at a time on a thread of the services, which may wait for a disk.
        """
        ...

    def stop(self) -> None:
        """Finish; runs after the last message. May be called without `start`."""
        ...


class Hooks:
    """The hooks. The host calls the plugin that was registered last first. None means: nothing from this plugin."""

    @hookspec
    def ustreamer_transports(self) -> Mapping[str, TransportKind] | None:
        """Kinds of transport, by the name in `transport = "..."`. Two plugins with one name are an error.

        Called on the class, without a configuration, because the configuration cannot be read earlier: make it a static
        method.
        """

    @hookspec
    def ustreamer_authorise(self, peer: Peer, attributes: UAttributes) -> UStatus | None:
        """The reason why `peer` may not send messages with these attributes. Not called for Responses.

        Called when a route is built, and for each message with a token: such a route is not cached. An exception denies
        the message, too. A plugin whose decisions change calls `Dispatcher.invalidate_routes`.
        """

    @hookspec
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        """A filter for one delivery target, or None. Called when a target appears and when its rate changes.

        The same Delivery object comes again after a change: keep state by it (in a WeakKeyDictionary).
        """

    @hookspec
    def ustreamer_taps(self, endpoint: str) -> Tap | None:
        """A tap that sees every verdict on messages that came in at `endpoint` ("self": the streamer's own)."""

    @hookspec
    def ustreamer_services(self) -> Sequence[HostedService] | None:
        """uEntities for the streamer to host."""

    @hookspec
    def ustreamer_broadcast_topics(self) -> Collection[UUri] | None:
        """Topics of the plugin's services that need no subscription, at most a few.

        Their publications go to each multicast domain (Zenoh, MQTT) with a listener, unless `access` of that endpoint
        denies them. Each subscriber gets them as well, once. Called when the router is built.
        """

    @hookspec
    def ustreamer_subscription_directory(self) -> SubscriptionDirectory | None:
        """The subscriptions in force. The host merges several directories."""

    @hookspec
    def ustreamer_subscription_watch(self) -> SubscriptionWatch | None:
        """A function that receives every subscription and every change of one. Called before any is loaded."""

    @hookspec
    def ustreamer_stored_subscriptions(self) -> SubscriptionDirectory | None:
        """The subscriptions in the plugin's files, for a command that runs next to the streamer or without it.

        Reads only. Without this hook, only a running streamer knows the subscriptions of the plugin's directory.
        """

    @hookspec
    def ustreamer_decoders(self, topic: UUri) -> Decoder | None:
        """A decoder for payloads of `topic`, for dashboards and other readers. Routing never reads a payload.

        Called once per topic and reader. Of several decoders, that of the plugin registered last is used.
        """

    @hookspec
    def ustreamer_configured(self, settings: StreamerSettings) -> None:
        """The settings in force from now on. Called at start, before anything is opened, and in each accepted reload.

        No message is dispatched during a reload, so be quick. An exception ends a start; a reload logs it.
        """

    @hookspec
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        """All endpoints are up."""

    @hookspec
    def ustreamer_stopping(self) -> None:
        """No more messages are accepted; endpoints still send."""

    @hookspec
    def ustreamer_stopped(self) -> None:
        """Everything is closed and no more verdicts follow. Also called after a start that failed."""
