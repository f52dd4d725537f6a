# SPDX-License-Identifier: Apache-2.0
"""What a case gets: applications with fresh addresses, fresh topics, and the other device."""

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from uprotocol_tck.case import CaseFailed, NotApplicable, NotJudged, check, check_equal
from uprotocol_tck.probe import Entity, Network, Received, is_response_to
from uprotocol_tck.protobuf import MalformedProtobuf
from uprotocol_tck.remote import RemoteUsubscription
from uprotocol_tck.shared_restart import SharedRestart
from uprotocol_tck.uprotocol import Code, Kind, Uri, Uuid
from uprotocol_tck.usubscription import CHANGES, DIALECTS, Dialect, State, Subscription

T = TypeVar("T")

CLEAN_UP_S: Final = 1.0
RESTART_S: Final = 60.0
SOON_MS: Final = 1_500
EARLY_MS: Final = 20
"""A subscription may end so much before its expiration: two clocks, and whole milliseconds."""
ANSWER_S: Final = 0.5
"""After this time a subject that restarts is called again."""
FIRST_TYPE, TYPES = 0x1000, 0x6000


class Options(NamedTuple):
    """What the command line says about the subject."""

    authority: str
    other: str = ""
    deadline_s: float = 10.0
    quiet_s: float = 0.3
    restart: str = ""
    dead_letters: Uri | None = None
    wamp: str = ""
    wamp_realm: str = "realm1"
    wamp_user: str = ""
    wamp_prefix: str = "com.example.tck."
    wamp_denied: str = ""
    answer_s: float = 0.0
    """How long the subject takes for an answer."""
    creates_topics: bool = False
    """The subject knows a topic only after CreateTopic, so the kit calls it for each topic that a case gets."""


class Names:
    """Addresses that no other case of this run has, and, by their instance, no other run."""

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._next = random.randrange(TYPES)
        self._lock = threading.Lock()

    def entity(self, authority: str, version: int = 1) -> Uri:
        with self._lock:
            self._next += 1
            return Uri(authority, self._instance << 16 | FIRST_TYPE + self._next % TYPES, version)


class Application(Entity):
    """An entity that uses the uSubscription of its device in one version."""

    def __init__(self, network: Network, address: Uri, dialect: Dialect) -> None:
        super().__init__(network, address)
        self.dialect = dialect
        self.service = Uri(address.authority, 0, dialect.version)
        self._used: dict[tuple[int, bytes], None] = {}

    def ask(self, method: int | None, payload: bytes, **changed: Any) -> Received:
        """Call a method of uSubscription; its response may be of any outcome."""
        if method is None:
            raise NotApplicable(f"version {self.dialect.version} has no such method")
        ends = {
            self.dialect.methods.subscribe: self.dialect.methods.unsubscribe,
            self.dialect.methods.register: self.dialect.methods.unregister,
        }
        if method in ends:
            topic = payload if method == self.dialect.methods.register else self._only_topic(payload)
            self._used[ends[method], topic] = None
        return self.call(self.service.at(method), payload, **changed)

    def ask_ok(self, method: int | None, payload: bytes, **changed: Any) -> Received:
        """As `ask`; the case fails if the response reports an error."""
        response = self.ask(method, payload, **changed)
        if response.head.code is not Code.OK:
            raise CaseFailed(f"method {method} of {self.service} is answered {response.head.code.name}")
        return response

    def subscribe(self, topic: Uri, *, expire_ms: int | None = None, period_ms: int | None = None) -> State:
        """Subscribe; the state in the response."""
        request = self.dialect.subscribe(topic, expire_ms, period_ms)
        response = self.ask_ok(self.dialect.methods.subscribe, request)
        return self.dialect.read_subscribed(response.payload)[0]

    def subscribe_code(self, topic: Uri) -> Code:
        """The outcome of a Subscribe."""
        return self.ask(self.dialect.methods.subscribe, self.dialect.subscribe(topic, None, None)).head.code

    def create_code(self, topic: Uri) -> Code:
        """The outcome of CreateTopic."""
        return self.ask(self.dialect.methods.create_topic, self.dialect.topic_request(topic)).head.code

    def deprecate_code(self, topic: Uri) -> Code:
        """The outcome of DeprecateTopic."""
        return self.ask(self.dialect.methods.deprecate_topic, self.dialect.topic_request(topic)).head.code

    def fetch_code(self) -> Code:
        """The outcome of FetchSubscriptions."""
        request = self.dialect.fetch(None, self.address)
        return self.ask(self.dialect.methods.fetch_subscriptions, request).head.code

    def unsubscribe(self, topic: Uri) -> Received:
        return self.ask_ok(self.dialect.methods.unsubscribe, self.dialect.topic_request(topic))

    def subscriptions(self, topic: Uri | None = None, subscriber: Uri | None = None) -> list[Subscription]:
        """FetchSubscriptions."""
        request = self.dialect.fetch(topic, subscriber)
        return self.dialect.read_list(self.ask_ok(self.dialect.methods.fetch_subscriptions, request).payload)

    def state_of(self, topic: Uri) -> State:
        """The state of this application's subscription, by the list."""
        states = [each.state for each in self.subscriptions(topic) if each.subscriber == self.address]
        check(
            len(states) <= 1, f"the subscription of {topic} by {self.address} is listed {len(states)} times"
        )
        return states[0] if states else State.UNSUBSCRIBED

    def wait_state(self, topic: Uri, state: State) -> None:
        """Wait until the list has this state."""
        until = time.monotonic() + self.network.deadline_s
        while (found := self.state_of(topic)) is not state and time.monotonic() < until:
            self.network.stop.sleep(0.02)
        check_equal(found, state, f"the listed state of {topic}")

    def register(self, topic: Uri) -> None:
        """RegisterForNotifications."""
        self.ask_ok(self.dialect.methods.register, self.dialect.register(topic))

    def unregister(self, topic: Uri) -> None:
        """UnregisterForNotifications."""
        self.ask_ok(self.dialect.methods.unregister, self.dialect.register(topic))

    def changes(self, topic: Uri, subscriber: Uri | None = None) -> list[Subscription]:
        """The notified changes of a topic so far, of all subscribers or of one."""
        changes = [self.dialect.read_change(each.payload) for each in self.inbox.all(self._is_change)]
        return [each for each in changes if each.topic == topic and subscriber in {None, each.subscriber}]

    def wait_change(
        self, topic: Uri, state: State, subscriber: Uri | None = None, count: int = 1
    ) -> Subscription:
        """Wait for the notification number `count` of this state."""

        def is_awaited(each: Received) -> bool:
            if not self._is_change(each):
                return False
            found = self.dialect.read_change(each.payload)
            return (found.topic, found.state) == (topic, state) and subscriber in {None, found.subscriber}

        found = self.wait(is_awaited, f"notifications of {topic} as {state.name}", count)
        return self.dialect.read_change(found[count - 1].payload)

    def is_change_of(self, topic: Uri) -> Callable[[Received], bool]:
        """True for a notification about this topic."""
        return lambda each: self._is_change(each) and self.dialect.read_change(each.payload).topic == topic

    def leave(self) -> list[Uuid]:
        """Request the end of all that it subscribed and registered. Returns the requests."""
        return [self.request(self.service.at(method), payload) for method, payload in self._used]

    def _is_change(self, each: Received) -> bool:
        head = each.attributes
        return (
            head is not None
            and head.kind == Kind.NOTIFICATION
            and head.sink == self.address
            and head.source == self.service.at(CHANGES)
        )

    def _only_topic(self, request: bytes) -> bytes:
        with suppress(MalformedProtobuf):
            return self.dialect.topic_request(self.dialect.read_request(request).topic)
        return b""


class World:
    """The networks of one run, and the entities of one case."""

    def __init__(
        self,
        near: Network,
        far: Network | None,
        remote: RemoteUsubscription | None,
        options: Options,
        names: Names,
        version: int,
        shared_restart: SharedRestart | None = None,
    ) -> None:
        """`far` is the network of the other device, `remote` its uSubscription.

        `shared_restart` is that of the cases that run next to this one.
        """
        self.near = near
        self.options = options
        self.dialect = DIALECTS[version]
        self._far = far
        self._remote = remote
        self._names = names
        self._shared_restart = shared_restart
        self._entities: list[Entity] = []

    @property
    def far(self) -> Network:
        return _given(self._far)

    @property
    def remote(self) -> RemoteUsubscription:
        return _given(self._remote)

    @property
    def service(self) -> Uri:
        """The uSubscription of the subject, in the version of the case."""
        return Uri(self.options.authority, 0, self.dialect.version)

    # --- entities and topics ------------------------------------------------------------------------------------------

    def app(self, address: Uri | None = None, version: int | None = None) -> Application:
        """A new application of the subject's device."""
        dialect = self.dialect if version is None else DIALECTS[version]
        made = Application(self.near, address or self._names.entity(self.options.authority), dialect)
        self._entities.append(made)
        return made

    def far_app(self, address: Uri | None = None) -> Entity:
        """A new entity of the other device."""
        made = Entity(self.far, address or self._names.entity(self.options.other))
        self._entities.append(made)
        return made

    def far_usubscription(self) -> Application:
        """The uSubscription of the other device, as a client of the subject's."""
        return self._far_client(Uri(self.options.other, 0, self.dialect.version))

    def far_client(self, address: Uri | None = None) -> Application:
        """A new entity of the other device that uses the subject's uSubscription."""
        return self._far_client(address or self._names.entity(self.options.other))

    def _far_client(self, address: Uri) -> Application:
        made = Application(self.far, address, self.dialect)
        made.service = self.service
        self._entities.append(made)
        return made

    def topic(self) -> Uri:
        """A topic of the subject's device, 8001 of an entity, that has never been used. 8002 is its neighbour.

        Where a subject demands it, their producer has called CreateTopic for both.
        """
        topic = self.new_topic()
        if self.options.creates_topics:
            producer = Application(self.near, topic.at(0), DIALECTS[3])
            try:
                for each in (topic, topic.at(0x8002)):
                    check_equal(producer.create_code(each), Code.OK, f"the outcome of CreateTopic for {each}")
            finally:
                producer.close()
        return topic

    def new_topic(self) -> Uri:
        """As `topic`, but without CreateTopic."""
        return self._names.entity(self.options.authority).at(0x8001)

    def other_topic(self) -> Uri:
        """A topic of the other device that has never been used."""
        return self._names.entity(self.options.other).at(0x8001)

    # --- time ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def now_ms() -> int:
        """The wall clock."""
        return time.time_ns() // 1_000_000

    def soon_ms(self) -> int:
        """A time that has not passed when the subject answers the next call."""
        return self.now_ms() + SOON_MS + round(2_000 * self.options.answer_s)

    def pass_ms(self, duration_ms: float) -> None:
        """Let time pass: until an expiration, or between publications."""
        self.near.stop.sleep(duration_ms / 1000)

    def quiet(self) -> None:
        """Wait as long as something that must not come would need."""
        self.near.stop.sleep(self.options.quiet_s + 2 * self.options.answer_s)

    # --- the subject --------------------------------------------------------------------------------------------------

    def restart(self) -> float:
        """Restart the subject, and wait until it answers again. All entities of the case listen again.

        The cases that run next to this one share the restart, so all of them wait here.

        Returns the monotonic time since which the other device has received nothing of before the restart.
        """
        shared = self._shared_restart
        left_at = shared.restart(self._restart_subject) if shared else self._restart_subject()
        for each in self._entities:
            each.listen_again()
        self.wait_answering()
        return left_at

    def _restart_subject(self) -> float:
        """Restart the subject, and connect the networks again. Returns as `restart`."""
        if self._far not in {None, self.near}:
            self.far.leave()
        left_at = time.monotonic()
        self._run_restart_command()
        self.near.leave()
        for network in {self.near, self._far} - {None}:
            assert network is not None
            network.return_()
        if self._remote:
            self._remote.listen()
        return left_at

    def _run_restart_command(self) -> None:
        command = self.options.restart
        try:
            done = subprocess.run(
                command,
                shell=True,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=RESTART_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CaseFailed(f"--restart does not end within {RESTART_S:g} s") from None
        if done.returncode:
            raise CaseFailed(f"--restart exits with {done.returncode}: {done.stderr.strip()[-200:]}")

    def wait_answering(self) -> None:
        """Wait until the uSubscription of the subject answers."""
        until = time.monotonic() + self.options.deadline_s
        while True:
            app = self.app()
            request = app.request(
                app.service.at(app.dialect.methods.fetch_subscriptions), app.dialect.fetch(None, app.address)
            )
            with suppress(CaseFailed):
                app.inbox.wait(is_response_to(request), "", ANSWER_S)
                return
            check(time.monotonic() < until, f"{self.service} does not answer after the restart")

    @contextmanager
    def far_network_away(self) -> Iterator[None]:
        """The network of the other device has no node in the body; after it, all listen again."""
        self.far.leave()
        try:
            yield
        finally:
            self.far.return_()
            self.remote.listen()

    def close(self) -> None:
        """End all subscriptions and registrations of the case."""
        until = time.monotonic() + CLEAN_UP_S
        requests = [
            (each, request)
            for each in self._entities
            if isinstance(each, Application)
            for request in each.leave()
        ]
        for app, request in requests:
            with suppress(CaseFailed, NotJudged):
                app.inbox.wait(is_response_to(request), "", max(0, until - time.monotonic()))
        for each in self._entities:
            each.close()


def _given(value: T | None) -> T:
    """The runner skips a case whose needs are not given; this names the mistake in a case."""
    assert value is not None, "the case does not declare Need.OTHER"
    return value
