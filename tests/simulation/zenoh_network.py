# SPDX-License-Identifier: Apache-2.0
"""A simulated Zenoh network: one router, sessions of the streamer, and applications.

Applications are no product code: they publish, record what they receive, and answer requests.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random
from typing import Final

from tests.simulation.scheduler import NS_PER_MS, Process, Scheduler
from tests.simulation.zenoh_link import LEASE_NS, PUT_WAIT_NS, LinkSizes, SimLink, WireMessage
from tests.simulation.zenoh_session import SimSession

_APP_BUFFER_BYTES: Final = 200_000
_FORGOTTEN_SHARE: Final = 0.5
_UNREAD_NS: Final = 50 * NS_PER_MS
_NOTICED_NS: Final = 150 * NS_PER_MS
"""How long a streamer does not know that an application is lost, at most."""
_UPDATE_NS: Final = 100 * NS_PER_MS
"""A streamer applies a token at the next tick of its link monitor, or at the one after it."""


class SimApp:
    """An application: its subscriptions, and the messages that it has received."""

    def __init__(
        self, network: "SimNetwork", name: str, on_message: Callable[[WireMessage], None] = lambda _: None
    ) -> None:
        self.name = name
        self.keys: list[str] = []
        self.connected = True
        self.stalled = False
        self.is_silent = False
        """Whether its lease at the router is over, and the router, which has just resumed, has not dropped it yet."""
        self.on_message = on_message
        self.tokens: set[str] = set()
        """The tokens with which the application announces receipts."""
        self._shared_keys: set[str] = set()
        """Those with a token for each. The next four have no other keys."""
        self.ended_keys: set[str] = set()
        """The keys whose subscription has ended, and begins again later."""
        self._keys_that_ended: set[str] = set()
        """As `ended_keys`, also of subscriptions that have begun again."""
        self._announced_keys: set[str] = set()
        """The keys whose subscription has its token, if the application has tokens."""
        self._seen_keys: dict[Process, dict[str, int]] = {}
        """Of these those that a streamer has seen since the subscription began, with the time."""
        # Messages:
        self.excused: set[bytes] = set()
        """The messages that need not arrive, as their subscription had ended when the router read them, or when they were
        put. Or it had begun, and the streamer had not seen its token yet.
        """
        self.early: set[bytes] = set()
        """The messages that a streamer put before it could know of the token of their subscription."""
        self.missed: set[bytes] = set()
        """The messages that the router read, and gave to others, while the application had no connection."""
        self.lost: set[bytes] = set()
        """The messages that were lost with its connection. The streamer cannot know of them."""
        self._network = network
        self._waiting: deque[tuple[int, WireMessage]] = deque()
        self._waiting_bytes = 0
        network.apps.append(self)

    def subscribe(self, key: str) -> None:
        self.keys.append(key)
        self._network.on_topology_change()

    def unsubscribe(self, key: str, token: str) -> None:
        """End a subscription and its token; `subscribe_again` begins it again."""
        if key in self.keys:
            self.keys.remove(key)
            self.tokens.discard(token)
            self.ended_keys.add(key)
            self._keys_that_ended.add(key)
            self._announced_keys.discard(key)
            for seen in self._seen_keys.values():
                seen.pop(key, None)
            self._network.on_topology_change()

    def subscribe_again(self, key: str) -> None:
        if key in self.ended_keys:
            self.ended_keys.remove(key)
            self.subscribe(key)

    def announce(self, key: str, token: str | None) -> None:
        """Announce the subscription of a key, if it has not ended meanwhile."""
        if key in self.keys:
            self._shared_keys.add(key)
            self._announced_keys.add(key)
            if token is not None:
                self.tokens.add(token)
            self._network.on_topology_change()

    def see_tokens(self, process: Process) -> set[str]:
        """The tokens, which this streamer sees now."""
        seen, now_ns = self._seen_keys.setdefault(process, {}), self._network.scheduler.now_ns
        for key in self._announced_keys - seen.keys():
            seen[key] = now_ns
        return self.tokens

    def is_seen(self, process: Process, key: str) -> bool:
        """Whether this streamer has seen the token of this subscription."""
        return key in self._seen_keys.get(process, ())

    def on_put(self, message: WireMessage, process: Process) -> None:
        """A streamer puts a message. It waits for no application whose token it has not seen."""
        if message.key not in self._shared_keys:
            return
        since_ns = self._seen_keys.get(process, {}).get(message.key)
        if since_ns is None and message.key in self._keys_that_ended:
            self.excused.add(message.id)
        elif since_ns is None or self._network.scheduler.now_ns < since_ns + _UPDATE_NS:
            self.early.add(message.id)

    def on_routed(self, message: WireMessage, source: "SimApp | SimSession") -> None:
        """The router read a message, and gave it to others but not to this application."""
        is_unseen = isinstance(source, SimSession) and not self.is_seen(source.process, message.key)
        if message.key in self.ended_keys or (is_unseen and not self.connected):
            self.excused.add(message.id)
        elif not self.connected:
            self.missed.add(message.id)

    def publish(self, message: WireMessage) -> None:
        """Put a message: it goes to the router, or is lost with it."""
        if self.connected and not self.is_silent:
            self._network.from_app(message, self)

    @property
    def is_full(self) -> bool:
        return self._waiting_bytes >= _APP_BUFFER_BYTES

    def deliver(self, message: WireMessage) -> None:
        self._waiting.append((self._network.scheduler.now_ns, message))
        self._waiting_bytes += message.size
        if len(self._waiting) == 1:
            self._network.scheduler.call_after(self._network.latency_ns(), self.read)
        if self.is_full:
            self._network.on_app_full(self)

    def read(self) -> None:
        if self.stalled or self.is_silent or not self.connected:
            return
        while self._waiting:
            _, message = self._waiting.popleft()
            self._waiting_bytes -= message.size
            self.on_message(message)
        self._network.resume_reading()

    def disconnect(self) -> None:
        """Lose the connection and what it had.

        The streamer cannot know of what was unread for longer than 50 ms. One that had stopped before knows nothing.
        """
        network = self._network
        old_ns = network.scheduler.now_ns - _UNREAD_NS
        running = {each.process for each in network.sessions if not each.is_gone}
        network.lost_in_freeze |= any(each.is_frozen for each in network.sessions)
        for at_ns, message in self._waiting:
            if at_ns < old_ns or network.put_by.get(message.id) not in {None, *running}:
                self.lost.add(message.id)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.connected = self.is_silent = False
        self._network.on_topology_change()

    def reconnect(self) -> None:
        network = self._network
        if self.connected or self.stalled or network.is_down:
            return  # the end of the fault tries again
        if network.is_running:
            self.connected = True
            network.on_topology_change()
        else:
            network.scheduler.call_after(network.rng.randrange(50, 1_500) * NS_PER_MS, self.reconnect)


class SimNetwork:
    """One router. `is_running` false: frozen or down. `is_cut`: the cable to the streamer is cut."""

    def __init__(
        self, scheduler: Scheduler, name: str, sizes: LinkSizes, put_wait_ns: int = PUT_WAIT_NS
    ) -> None:
        """`put_wait_ns`: how long a put of a streamer waits for room."""
        self.scheduler = scheduler
        self.name = name
        self.sizes = sizes
        self.put_wait_ns = put_wait_ns
        seed = scheduler.rng.getrandbits(64)
        self.rng = Random(seed)
        # Of their own: other stories stay as they are.
        self._forget_rng = Random(f"forgotten connections of {seed}")
        self.freeze_rng = Random(f"freezes of {seed}")
        self.sessions: list[SimSession] = []
        self._all_sessions: list[SimSession] = []
        self.apps: list[SimApp] = []
        self.orphans: list[SimLink] = []
        """Closed connections: the router may still read what has arrived."""
        self.is_running = True
        self.is_down = False
        self.is_cut = False
        self.taken: dict[bytes, Process] = {}
        """The messages that a streamer has received, with the process that did."""
        self.taken_ns: dict[bytes, int] = {}
        """When a streamer received a message."""
        self.put_by: dict[bytes, Process] = {}
        """The messages that a streamer has put, with the process that did it last."""
        self.put_ns: dict[bytes, int] = {}
        """When a streamer put a message for the last time."""
        self.puts: dict[Process, list[tuple[int, int]]] = {}
        """All puts of a streamer: their times, and the bytes of their payloads."""
        self.put_waits: dict[Process, list[tuple[int, int]]] = {}
        """When puts of a streamer waited for room: from, until."""
        self.full_ns: list[int] = []
        """When the kernel of the router had no more room for what a streamer sent."""
        self.put_without_subscriber: set[bytes] = set()
        """The messages that a streamer has put although it could know that no subscriber matches."""
        self.lost_at_apps: set[bytes] = set()
        """The messages that the router received when no application was connected any more, or never read as it waited
        for one.
        """
        self.read_late: dict[bytes, Process] = {}
        """The messages of an ended streamer that the router read after the next one had connected, with their process."""
        self.notes: Counter[str] = Counter()
        self._generation = 1
        self._held: deque[tuple[WireMessage, SimApp]] = deque()
        self._refresh_scheduled = False
        self._frozen_ns = 0
        self._frozen_unread: set[bytes] = set()
        """The messages that the router had not read when it froze, because it waited for an application."""
        self._unread_by_thawed: set[bytes] = set()
        """The messages that a thawed router reads after it has dropped applications."""
        self.lost_in_freeze = False
        """Whether an application was lost while a session was frozen."""
        self._disorders_ns: list[tuple[int, int]] = []
        """Begin and end of the times in which messages may overtake those that are sent again, as documented."""
        self._is_any_full = False
        """True if an application may be full: a test for each message would cost more."""

    @property
    def zid(self) -> str:
        return f"{self.name}{self._generation}"

    def latency_ns(self) -> int:
        return 100_000 + int(self.rng.random() * 300_000)

    def on_session_thawed(self) -> None:
        """The session does not know yet which applications it has lost."""
        if self.lost_in_freeze:
            self._allow_disorder(0)
        self.lost_in_freeze = False

    def _allow_disorder(self, ns: int) -> None:
        """From now, for this time and until a streamer knows that an application is lost."""
        now_ns = self.scheduler.now_ns
        self._disorders_ns.append((now_ns, now_ns + ns + _NOTICED_NS))

    def may_overtake(self, at_ns: int) -> bool:
        """Whether messages that arrived at this time may have overtaken those that are sent again."""
        return any(begin_ns <= at_ns <= end_ns for begin_ns, end_ns in self._disorders_ns)

    def forgets_connection(self) -> bool:
        """Whether Zenoh forgets a connection that follows one that it closed because a put had waited too long."""
        return self._forget_rng.random() < _FORGOTTEN_SHARE

    def note(self, text: str) -> None:
        """Record an event for the story of a failure."""
        self.notes[text] += 1

    def on_put(self, message: WireMessage, process: Process) -> None:
        self.put_by[message.id] = process
        self.put_ns[message.id] = self.scheduler.now_ns
        for app in self.apps:
            app.on_put(message, process)
        self.puts.setdefault(process, []).append((self.scheduler.now_ns, len(message.payload)))

    def on_put_end(self, begin_ns: int, process: Process) -> None:
        """A put took the time since then: other puts of the process waited for it. Waits in a row are one."""
        now_ns, waits = self.scheduler.now_ns, self.put_waits.setdefault(process, [])
        if now_ns - begin_ns < NS_PER_MS:
            return
        if waits and begin_ns - waits[-1][1] < NS_PER_MS:
            begin_ns, _ = waits.pop()
        waits.append((begin_ns, now_ns))

    def put_end_ns(self, id: bytes) -> int:
        """When the put of a message ended: it may have waited, alone or with those before it."""
        put_ns, waits = self.put_ns[id], self.put_waits.get(self.put_by[id], ())
        return next((end_ns for begin_ns, end_ns in waits if begin_ns <= put_ns <= end_ns), put_ns)

    def on_taken(self, message: WireMessage, process: Process) -> None:
        if self.taken.get(message.id) is not process:  # a copy is not taken again
            self.taken[message.id] = process
            self.taken_ns[message.id] = self.scheduler.now_ns

    # --- routing ------------------------------------------------------------------------------------------------------

    @staticmethod
    @lru_cache(65_536)
    def matches(pattern: str, key: str) -> bool:
        chunks, wanted = key.split("/"), pattern.split("/")
        return len(chunks) == len(wanted) and all(
            one in ("*", other) for one, other in zip(wanted, chunks, strict=True)
        )

    @classmethod
    @lru_cache(65_536)
    def _is_subscribed(cls, patterns: tuple[str, ...], key: str) -> bool:
        return any(cls.matches(pattern, key) for pattern in patterns)

    def has_subscriber(self, key: str, but: SimSession) -> bool:
        return any(
            self.matches(pattern, key) for app in self.apps if app.connected for pattern in app.keys
        ) or any(
            self.matches(each.key, key)
            for session in self.sessions
            if session is not but and session.link is not None
            for each in session.subscribers
        )

    def see_tokens(self, process: Process) -> set[str]:
        """The tokens of the connected applications, which this streamer sees now."""
        return {token for app in self.apps if app.connected for token in app.see_tokens(process)}

    @property
    def can_read(self) -> bool:
        """Whether the router reads: not while one application has no room, as its puts then wait."""
        return self.is_running and not self._waits_for_app

    @property
    def _waits_for_app(self) -> bool:
        return self._is_any_full and any(app.is_full and app.connected for app in self.apps)

    def on_unread(self, messages: Iterable[WireMessage]) -> None:
        """Messages were never read. Documented: the router may have waited for an application and sent keep-alives."""
        waits = self._waits_for_app
        self.lost_at_apps.update(each.id for each in messages if waits or each.id in self._frozen_unread)

    def from_app(self, message: WireMessage, app: SimApp) -> None:
        if self.can_read:
            self.route(message, app)
        elif not self.is_down:
            self._held.append((message, app))

    def route(self, message: WireMessage, source: SimApp | SimSession) -> None:
        has_receiver, source_is_app, others = False, isinstance(source, SimApp), list[SimApp]()
        if isinstance(source, SimSession) and source.is_gone and self._has_successor(message, source):
            self.read_late[message.id] = source.process
        for app in self.apps:
            if app is not source and app.connected and self._is_subscribed(tuple(app.keys), message.key):
                app.deliver(message)
                has_receiver = True
            else:
                others.append(app)
        for app in others if has_receiver else ():
            app.on_routed(message, source)
        for session in self.sessions:
            link = session.link
            if session is source or link is None or link.dead:
                continue
            for each in session.subscribers:
                if self.matches(each.key, message.key):
                    link.send_down(message)
                    has_receiver |= source_is_app  # a streamer that receives what its predecessor put is none
                    break
        if message.id in self._unread_by_thawed:
            self._unread_by_thawed.discard(message.id)
        elif not has_receiver and message.id not in self.put_without_subscriber:
            self.lost_at_apps.add(message.id)

    def _has_successor(self, message: WireMessage, ended: SimSession) -> bool:
        """Whether a next streamer is connected, or was. If it has put the message too, its copy comes in order."""
        is_connected = any(each.link is not None for each in self.sessions)
        was_connected = next(reversed(self.puts)) is not ended.process
        return (is_connected or was_connected) and self.put_by[message.id] is ended.process

    def resume_reading(self) -> None:
        while self._held and self.can_read:
            self.route(*self._held.popleft())
        for session in self.sessions:
            if session.link is not None:
                session.link.read()
        for link in self.orphans:
            link.read()

    def on_app_full(self, app: SimApp) -> None:
        self._is_any_full = True

        def check() -> None:
            if app.is_full and app.connected and self.is_running:
                self.note(
                    f"router {self.name} closed the connection of {app.name}, which read nothing for 5 s"
                )
                app.disconnect()
                self.resume_reading()

        self.scheduler.call_after(PUT_WAIT_NS, check)

    def on_topology_change(self) -> None:
        """Subscriptions or links changed: sessions learn of it after a moment, if the router runs."""
        if not self._refresh_scheduled:
            self._refresh_scheduled = True
            self.scheduler.call_after(5 * self.latency_ns(), self._refresh)

    def _refresh(self) -> None:
        self._refresh_scheduled = False
        if not self.is_running or self.is_cut:
            return  # the end of the fault refreshes
        for session in self.sessions:
            if session.link is not None and not session.link.dead:
                session.refresh_matching()

    # --- faults -------------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        if self.is_running:
            self.is_running = False
            self._frozen_ns = self.scheduler.now_ns
            # If it does not wait, it has read everything.
            links = [each.link for each in self.sessions if each.link is not None] + self.orphans
            self._frozen_unread = {each.id for link in links for each in link.received.messages}
            self._update_links()

    def thaw(self) -> None:
        if not self.is_down and not self.is_running:
            frozen_ns = self.scheduler.now_ns - self._frozen_ns
            if frozen_ns > LEASE_NS and self.rng.random() < 0.5:
                self._expire_links()
            elif frozen_ns > LEASE_NS * 3 // 4:
                self._drop_apps_at_thaw(frozen_ns)
            self.is_running = True
            self._update_links()
            self.resume_reading()
            self.on_topology_change()

    def _drop_apps_at_thaw(self, frozen_ns: int) -> None:
        """Drop the applications, often after a session has connected whose attempt waited for the router."""
        waiting = [each for each in self.sessions if each.waits_for_router]
        if not waiting or self.rng.random() < 0.5:
            self._drop_apps(self._silent_apps(frozen_ns))
            return
        silent = self._silent_apps(frozen_ns)
        for app in silent:
            app.is_silent = True
        for each in waiting:
            self.scheduler.call_after(self.rng.randrange(5) * NS_PER_MS, each.connect)
        lost_ms = self.rng.randrange(5, 50)
        self._allow_disorder(lost_ms * NS_PER_MS)

        def drop() -> None:
            self._drop_apps(silent)
            self.resume_reading()

        self.scheduler.call_after(lost_ms * NS_PER_MS, drop)

    def _silent_apps(self, frozen_ns: int) -> list[SimApp]:
        """Those whose last keep-alive is older than a lease: it came up to a quarter of the lease before the freeze."""
        return [
            app
            for app in self.apps
            if app.connected and frozen_ns + self.rng.randrange(LEASE_NS // 4) > LEASE_NS
        ]

    def _drop_apps(self, silent: Iterable[SimApp]) -> None:
        """A thawed router drops the silent applications. They connect again after 5 to 50 ms. Measured: 8 ms."""
        silent = [app for app in silent if app.connected]
        links = [each.link for each in self.sessions if each.link is not None]
        if silent:
            buffers = (each for link in links for each in (link.received, link.sent, link.queue))
            self._unread_by_thawed |= {message.id for each in buffers for message in each.messages}
        for app in silent:
            self.note(f"router {self.name} dropped {app.name}, as it resumed")
            app.disconnect()
            self.scheduler.call_after(self.rng.randrange(5, 50) * NS_PER_MS, app.reconnect)

    def _expire_links(self) -> None:
        """A router that was frozen for longer than the lease may close its links before it reads what has arrived."""
        for session in self.sessions:
            if session.link is not None:
                session.link.reset()
        self._close_orphans()

    def _close_orphans(self) -> None:
        for link in self.orphans:
            unread = link.received.clear()
            self.on_unread(unread)
            lost = unread + link.sent.clear()
            link.is_broken |= bool(lost)
            if lost:
                self.note(f"{len(lost)} messages of a closed link of {link.session.name} were never read")
        self.orphans.clear()

    def kill_router(self) -> None:
        if self.is_down:
            return
        self.is_running, self.is_down = False, True
        self._held.clear()
        for session in self.sessions:
            if session.link is not None:
                session.link.reset()
        self._close_orphans()
        for app in self.apps:
            if app.connected:
                app.disconnect()

    def start_router(self) -> None:
        if self.is_down:
            self._generation += 1
            self.is_running, self.is_down = True, False
            for app in self.apps:
                self.scheduler.call_after(self.rng.randrange(50, 1_500) * NS_PER_MS, app.reconnect)

    def cut(self) -> None:
        self.is_cut = True
        self._update_links()

    def join_cable(self) -> None:
        self.is_cut = False
        self._update_links()
        self.on_topology_change()

    def stall(self, app: SimApp) -> None:
        app.stalled = True

    def unstall(self, app: SimApp) -> None:
        app.stalled = False
        if app.connected:
            app.read()
        else:
            self.scheduler.call_after(self.rng.randrange(50, 1_500) * NS_PER_MS, app.reconnect)

    def _update_links(self) -> None:
        for session in self.sessions:
            if session.link is not None:
                session.link.cut = self.is_cut
                session.link.update_silence()

    def release(self) -> None:
        """Empty this network after a run."""
        for session in self._all_sessions:
            for publisher in session.publishers:
                vars(publisher).clear()
            vars(session).clear()
        for each in (*self.orphans, *self.apps, self):
            vars(each).clear()

    def add_session(self, session: SimSession) -> None:
        self.sessions.append(session)
        self._all_sessions.append(session)

    def forget(self, process: Process) -> None:
        """The process ended: its kernel closes its connections."""
        for session in self.sessions:
            if session.process is process:
                session.on_killed()
        self.sessions = [each for each in self.sessions if each.process is not process]
