# SPDX-License-Identifier: Apache-2.0
"""Everything a plugin can do: thirteen hooks. docs/plugins.md shows each of them at work.

All hooks are called while the streamer is set up (or shut down); per message only what they return is run. A plugin is
a class named by an entry point of the group "ustreamer"; the host makes one instance when the configuration has a
section `[plugins.<name>]`:

    class MyPlugin:
        class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...
        def __init__(self, config: Config, context: PluginContext) -> None: ...   # must not touch the world yet

Plugins import this module, `ustreamer.core` and `ustreamer.uprotocol`; never the host, a transport or another plugin.
"""

import argparse
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol

import msgspec
import pluggy

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.links import LinkStates
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, LedgerSnapshot
from ustreamer.core.delivery.ports import Filter, SendBatch, SendOne, Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.dispatcher_port import Schedule
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.core.routing.access import AccessRules
from ustreamer.core.routing.subscriptions import Subscription, SubscriptionDirectory, SubscriptionWatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuri import UUri

PROJECT: Final = "ustreamer"
UNBOUNDED: Final = 1 << 62
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class PluginContext(msgspec.Struct, frozen=True):
    """What a plugin gets of the streamer it runs in.

    `authority` is the streamer's own; `serves` are the authorities its uSubscription answers for (the own one and those
    behind transports without a uSubscription); `state_dir` may not exist yet; `schedule` makes a call at a monotonic
    time in ns, on a thread of the host that must not be held up; `links` tells which authorities can be reached; `authorities` are
    all that the configuration names, and so all whose place is known; ask it each time, a reload changes it. `ledger()` gives the
    books of this moment.
    """

    authority: str
    serves: tuple[str, ...]
    state_dir: Path
    clock: Clock
    schedule: Schedule
    links: LinkStates = msgspec.field(default_factory=LinkStates)
    authorities: Collection[str] = ()
    ledger: Callable[[], LedgerSnapshot] = lambda: EMPTY_LEDGER


class StreamerSettings(msgspec.Struct, frozen=True):
    """What the streamer goes by: the limits of each endpoint's lane, and the section of each plugin that is on."""

    egress: Mapping[str, EgressLimits]
    plugins: Mapping[str, msgspec.Struct]


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every `[endpoints.<name>]` section has; each transport adds its own keys.

    `authorities` live behind the endpoint; `"*"` stands for everyone who is not named elsewhere. `access` says which of
    their messages may come in; of a message that comes again within `duplicate_window` others, only the first one does.
    What waits for a `durable` one is kept on disk.
    """

    transport: str
    authorities: tuple[str, ...]
    access: AccessRules = ()
    duplicate_window: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    durable: bool = False


class EndpointProvider(Protocol):
    """A plugin's Config that brings endpoints along, so that nobody has to write them down a second time."""

    def endpoints(self, authority: str) -> Mapping[str, EndpointConfig]:
        """Them by their names, for a streamer of this authority. They are as if they stood in the file."""
        ...


Decoder = Callable[[bytes], object]
"""From a payload to None, bool, int, float, str, bytes, and lists and dicts (with strings as keys) of such.

It may raise whatever it likes where it cannot; then the payload is shown as it is.
"""


def _no_decoder(topic: UUri) -> Decoder | None:
    return None


class EndpointContext(msgspec.Struct, frozen=True):
    """What a transport gets: its endpoint's name, the streamer's own authority, the clock, and who can read payloads.

    `decoder(topic)` is what a plugin has for a topic; ask it once for each, and not while the transport is made. `serves` are the
    authorities that the streamer's uSubscription answers for; `topics()` are those that the configuration names at any endpoint
    (`EndpointTransport.topics`), to be asked for when the transport is opened, not before.
    `instance` is the streamer's process, as its announcements name it; "" where there is none.
    """

    name: str
    authority: str
    clock: Clock
    decoder: Callable[[UUri], Decoder | None] = _no_decoder
    serves: tuple[str, ...] = ()
    topics: Callable[[], Collection[UUri]] = tuple
    instance: str = ""


class RouteUnavailable(UStatusError):
    """UNAVAILABLE for one message's route only: its receiver is away, and others may be there.

    `route` is the transport's own name for what is closed: what else it refuses with an equal one waits for the same.
    """

    def __init__(self, route: Hashable, message: str) -> None:
        super().__init__(UCode.UNAVAILABLE, message)
        self.route = route


class SubscriberEnded(UStatusError):
    """NOT_FOUND for a publication whose one subscriber has ended and is not known as gone everywhere yet.

    It is nobody's message any more: NO_SUBSCRIBER in the books, never tried again, and no dead letter.
    """

    def __init__(self, subscriber: UUri) -> None:
        super().__init__(UCode.NOT_FOUND, f"subscriber {subscriber} has ended")


class EndpointTransport(UTransport):
    """A UTransport as the streamer uses it: one object per `[endpoints.<name>]`, with a socket or session of its own.

    Listeners may be registered before and after `open`; they are called on threads of the transport. What an endpoint
    sends does not come back to its own listeners.
    """

    unicast: ClassVar[bool] = False
    """Whether every subscriber is a delivery target of its own; else all behind the endpoint are one."""
    inline: ClassVar[bool] = False
    """Whether `send` never waits, so that it may always be called on the thread a message came in on."""

    def send_window(self) -> int:
        """Bytes that `send` takes from now on without waiting, as long as only the caller sends; 0 if that is not known.

        So much is sent on the thread that a message came in on; the rest gets one of its own. Asked again when 256 KB of it
        are used up, but where it is UNBOUNDED, and after the link came up; each payload counts for 200 bytes more.
        """
        return UNBOUNDED if self.inline else 0

    def problems(self) -> Sequence[str]:
        """What would keep `open` from succeeding, as far as can be told without leaving a trace."""
        return ()

    @abstractmethod
    def open(self) -> None:
        """Bind, connect, start receiving. Raises UStatusError(UNAVAILABLE) naming what could not be had."""

    @abstractmethod
    def stop_receiving(self) -> None:
        """Take nothing more in, so that what has been accepted can drain; sending still works. May be repeated."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. May be repeated, and called on an endpoint that was never opened."""

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        """What sends to one subscriber of a unicast transport, or (None) to whoever a message itself names.

        It raises RouteUnavailable where only some of it cannot be sent: the lane then holds only that stream of messages;
        UNAVAILABLE where nothing can, which holds up the lane of this `subscriber` and no other; and SubscriberGone for a
        publication whose `subscriber` has ended. One thread sends for all subscribers: it must not wait for one of them.
        """
        return self.send

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        """As `transmitter`, for many messages at once: where that is cheaper than one by one. It takes what it can."""
        transmit = self.transmitter(subscriber)

        def transmit_batch(messages: Iterable[UMessage], /) -> int:
            sent = 0
            for message in messages:
                try:
                    transmit(message)
                except Exception:  # noqa: BLE001  # it is transmitted again, by itself, and raises where that is seen
                    break
                sent += 1
            return sent

        return transmit_batch

    def subscriptions(self) -> Sequence[Subscription]:
        """Subscriptions that the endpoint's configuration fixes, for peers that cannot subscribe by themselves."""
        return ()

    def topics(self) -> Sequence[UUri]:
        """Topics that are published behind the endpoint, as far as its configuration names them."""
        return ()

    def subscription_directory(self, changed: Callable[[], None]) -> SubscriptionDirectory | None:
        """Who behind the endpoint wants what, where a uSubscription has no words for it; None: nothing.

        Its `version` is not read, so that it costs nothing per message: `changed` is to be called after every change, from
        any thread and with no lock held. All plans are then made again.
        """
        return None

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        """Have `changed` called whenever somebody behind the endpoint comes within reach (True), or the last one is lost.

        Called before `open`, which tells the state it finds, up or down, as soon as `send` works. `changed` runs on a
        thread of the transport or on that of `open`, and must be quick. A transport that cannot tell never calls it.
        """

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        """Have `opened` called with a `RouteUnavailable.route` when it is open again, so that it is tried at once.

        Called before `open`. `opened` runs on a thread of the transport and must be quick. A transport that cannot tell
        never calls it: the route is tried again by and by.
        """

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """Tell the other streamers on this network these things about us from now on, and no others.

        Called when all endpoints are open, and at a reload; `stop_receiving` and an end of any kind take everything back.
        A transport that cannot tell does nothing.
        """

    def watch_peers(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        """Have `changed` called with all that streamers announce on this network, after every change.

        Called before `open`. `changed` runs on a thread of the transport and may take as long as one message. What cannot
        be read is refused and counted; there is a bound to what is kept. A transport that cannot tell never calls it.
        """

    def trust_peers(self, is_trusted: Callable[[RouterId, str], bool]) -> None:
        """Go by `brings(streamer, authority)` where another streamer on this network would do what we do: may it be relied on?

        Whether it can be believed to bring there what `authority` has. Called after `announce` and whenever the answers may have
        changed, from any thread; `brings` may be asked on any thread and does not wait.
        """

    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        """Tell the other streamers on this network that we put these topics there, and no others. Does not wait.

        Called after `announce`, whenever that has changed. What is not told yet, or cannot be, others put as well. What
        takes `announce` back takes this back.
        """

    def watch_topic_advertisements(
        self, changed: Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]
    ) -> None:
        """Have `changed` called with what came and went of what streamers put on this network, as with `watch_peers`."""

    @abstractmethod
    def statistics(self) -> Mapping[str, int]:
        """Counters of this moment, among them one `refused_<reason>` for each way in which input can be unusable."""


class TransportKind(msgspec.Struct, frozen=True):
    """A kind of transport: the type of its config section, and what makes an endpoint from it.

    `make(config, context)` must not touch the world yet; importing a heavy library belongs into it.
    """

    config: type[EndpointConfig]
    factory: Callable[[Any, EndpointContext], EndpointTransport]
    has_usubscription: bool | Callable[[Any], bool] = True
    """Whether entities behind it bring a uSubscription of their own; if not, the streamer's serves their authorities.

    Where that depends on the endpoint, it is asked of its config.
    """
    outlives_streamer: bool = True
    """Whether those behind it are there after a restart of the streamer; if not, nothing can be kept for them."""

    def provides_usubscription(self, config: EndpointConfig) -> bool:
        """Whether those behind the endpoint of this config have a uSubscription of their own."""
        answer = self.has_usubscription
        return answer if isinstance(answer, bool) else answer(config)


class HostedService(Protocol):
    """uEntities that the streamer hosts, such as core.usubscription."""

    @property
    def entities(self) -> Sequence[UUri]:
        """Their addresses (resource 0; any version): what is addressed to these stays in this process."""
        ...

    def start(self, bus: UTransport) -> None:
        """Open what is needed and register listeners on `bus`; runs before the first message is accepted.

        Listeners are called one at a time on a thread of the services' own, which may wait for a disk.
        """
        ...

    def stop(self) -> None:
        """Finish; runs after the last message. May be called without `start`."""
        ...


class Hooks:
    """The hooks themselves. Plugins are asked last registered first; None means "nothing from me"."""

    @hookspec
    def ustreamer_transports(self) -> Mapping[str, TransportKind] | None:
        """Kinds of transport, by the name that `transport = "..."` uses. Two plugins with one name are an error.

        Called on the class and without a configuration (which cannot be read before): make it a static method.
        """

    @hookspec
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        """A filter for one delivery target, or None. Asked when a target appears and when its wish changes.

        The same Delivery object comes again after a change: keep state by it (in a WeakKeyDictionary).
        """

    @hookspec
    def ustreamer_taps(self, endpoint: str) -> Tap | None:
        """Something that sees every verdict on messages that came in at `endpoint` ("self": the streamer's own)."""

    @hookspec
    def ustreamer_services(self) -> Sequence[HostedService] | None:
        """uEntities for the streamer to host."""

    @hookspec
    def ustreamer_subscription_directory(self) -> SubscriptionDirectory | None:
        """Who subscribed what. Several directories are merged."""

    @hookspec
    def ustreamer_subscription_watch(self) -> SubscriptionWatch | None:
        """Something that is told of every subscription, and of every change of one. Asked before any is loaded."""

    @hookspec
    def ustreamer_stored_subscriptions(self) -> SubscriptionDirectory | None:
        """Who subscribed what by the files alone, for a command that runs beside the streamer or without it.

        Reads and touches nothing. Without it, what the plugin's directory knows is known to a running streamer only.
        """

    @hookspec
    def ustreamer_decoders(self, topic: UUri) -> Decoder | None:
        """What makes payloads of `topic` readable, for dashboards and the like; routing never looks into one.

        Asked once per topic and reader. If several plugins have one, that of the plugin registered last is used.
        """

    @hookspec
    def ustreamer_commands(self, commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        """Add subcommands to the command line: `commands.add_parser(...)` with `set_defaults(run=function)`.

        Called on the class and without a configuration: make it a static method. `function(arguments)` returns the
        exit code.
        """

    @hookspec
    def ustreamer_configured(self, settings: StreamerSettings) -> None:
        """What holds from now on. Called at the start, before anything is opened, and in each reload that is accepted.

        In a reload nothing is dispatched meanwhile: be quick. What it raises ends a start; in a reload it is logged.
        """

    @hookspec
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        """All endpoints are up."""

    @hookspec
    def ustreamer_stopping(self) -> None:
        """No more messages will come; endpoints still send."""

    @hookspec
    def ustreamer_stopped(self) -> None:
        """Everything is closed; no verdict will fall any more. Called after a start that failed, too."""
