# SPDX-License-Identifier: Apache-2.0
"""Two vehicles: a streamer each, a Zenoh network of applications behind each, and a third network between them.

The networks of the applications are routers in the test's process, so applications stay while a streamer dies; the
network between the streamers is nothing but their two sessions, so one that dies is a link that goes down.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import zenoh

from tests.e2e import wire
from tests.e2e.peers import ZenohPeer, eventually
from tests.e2e.ports import tcp_ports
from tests.e2e.streamer import StreamerProcess, statistics
from tests.e2e.subscriber import Subscriber
from tests.e2e.wire import Uri

A: Final = "a.vin1"
"""The near side, where the subscribers of these tests are."""
B: Final = "b.vin1"
"""The far side, where the topics are."""

_CONFIG: Final = """\
authority = "{authority}"
state_dir = "state"

[endpoints.local]
transport = "zenoh"
authorities = ["{authority}"]
mode = "peer"
connect = ["tcp/127.0.0.1:{network}"]

[endpoints.link]
transport = "zenoh"
authorities = ["{other}"]
mode = "peer"
listen = ["tcp/127.0.0.1:{link}"]
connect = ["tcp/127.0.0.1:{other_link}"]

[plugins.usubscription]
{usubscription}
[plugins.throttle]
"""


class Ports(NamedTuple):
    """TCP ports of one side: its applications' network, and where its streamer listens for the other one."""

    network: int
    link: int


def _ports() -> tuple[Ports, Ports]:
    numbers = tcp_ports(4)
    return Ports(*numbers[:2]), Ports(*numbers[2:])


class Side:
    """A streamer that can die and come back, and the network of its applications, which stays."""

    def __init__(
        self, authority: str, other: str, ports: Ports, other_link: int, directory: Path, usubscription: str
    ) -> None:
        self.authority = authority
        self._other = other
        self.usubscription = Uri(authority, 0, 3)
        self.ports = ports
        self._directory = directory
        self._config = directory / "streamer.toml"
        text = _CONFIG.format(
            authority=authority,
            other=other,
            network=ports.network,
            link=ports.link,
            other_link=other_link,
            usubscription=usubscription,
        )
        self._config.write_text(text, encoding="utf-8")
        self._process: StreamerProcess | None = None
        self._frozen = False
        self._ended = True  # by our hand, and nothing is to be heard from it
        self._network = _router(ports.network)
        self.witness = Subscriber(ports.network, authority)
        """An application that is always there, and asks what is listed."""

    @property
    def running(self) -> bool:
        """Whether it is started and not killed; AssertionError if it has ended by itself."""
        if not self._ended and not self.process.alive:
            self.kill()  # which closes its pipes
            raise AssertionError(f"the streamer of {self.authority} ended by itself\n{self.process.said}")
        return not self._ended

    @property
    def process(self) -> StreamerProcess:
        assert self._process is not None, f"the streamer of {self.authority} was never started"
        return self._process

    # --- life and death -------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the streamer and wait for nothing."""
        assert not self.running
        self._process = StreamerProcess(self._config)
        self._ended = False

    def await_ready(self) -> None:
        """Wait until it answers its applications."""
        self.process.ready()
        self.witness.wait_answering(self.usubscription.at(wire.FETCH_SUBSCRIBERS))

    def await_link(self) -> None:
        """Wait until it has been connected to the other side."""
        self.process.stderr.one(lambda line: "link_up" in line and '"link"' in line)

    def await_neighbour(self) -> None:
        """Wait until it has been told that the other side listens: whatever was asked before is asked again then."""

        def there() -> list[str]:
            said = [each for each in self.process.log if each["event"] == "neighbours"]
            return said[-1]["there"] if said else []

        eventually(there, [self._other])

    @property
    def links(self) -> int:
        """How many nodes it knows on the network between the streamers."""
        found: int = statistics(self._directory / "state")["endpoints"]["link"]["links"]
        return found

    def start(self) -> None:
        self.launch()
        self.await_ready()

    def kill(self) -> None:
        """SIGKILL, frozen or not; what it was sent and has not read is lost."""
        self.process.kill()
        self._ended, self._frozen = True, False

    def freeze(self) -> None:
        """SIGSTOP: the link stays up, what is sent to it waits in its socket, and nothing is answered."""
        process = self.process._process
        process.send_signal(signal.SIGSTOP)
        self._frozen = True
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # a signal is not there at once

    def thaw(self) -> None:
        if self._frozen:
            self.process._process.send_signal(signal.SIGCONT)
        self._frozen = False

    def lose_state(self) -> None:
        """Empty the state_dir of a streamer that is dead."""
        assert not self.running
        shutil.rmtree(self._directory / "state")

    def stop(self) -> None:
        """End it as a supervisor would; it must have kept its books."""
        self.thaw()
        if self.running:
            self._ended = True
            self.process.stop()

    def give_up(self) -> str:
        """Kill it if it runs; what it has said."""
        if not self._ended:
            self.kill()
        return f"the streamer of {self.authority} said:\n{self.process.said}" if self._process else ""

    def close(self) -> None:
        """Leave nothing behind, whatever has gone wrong."""
        self.give_up()
        self.witness.close()
        self._network.close()  # type: ignore[no-untyped-call]

    # --- asking ---------------------------------------------------------------------------------------------------------

    def application(self) -> Subscriber:
        """A new application behind this side; the caller closes it."""
        return Subscriber(self.ports.network, self.authority)

    def listed(self, topic: Uri) -> dict[Uri, int]:
        """Who is listed here as a subscriber of `topic`, and in which state."""
        answer = self.witness.ask(self.usubscription.at(wire.FETCH_SUBSCRIPTIONS), wire.on_topic(topic))
        return {each.subscriber: each.state for each in wire.subscriptions_in(answer.payload)}

    def subscribers(self, topic: Uri) -> list[Uri]:
        """Who is listed by FetchSubscribers."""
        answer = self.witness.ask(self.usubscription.at(wire.FETCH_SUBSCRIBERS), wire.on_topic(topic))
        return sorted(wire.subscribers_in(answer.payload))

    def subscribed_of(self, authority: str) -> set[Uri]:
        """The topics of an authority that anybody has subscribed here."""
        return {each.topic for each in self._everything() if each.topic.authority == authority}

    def subscribed_by(self, authority: str) -> set[Uri]:
        """The topics that the uSubscription of an authority has subscribed here, in whatever version."""
        listed = self._everything()
        return {e.topic for e in listed if (e.subscriber.authority, e.subscriber.ue_id) == (authority, 0)}

    def _everything(self) -> list[wire.Subscription]:
        answer = self.witness.ask(self.usubscription.at(wire.FETCH_SUBSCRIPTIONS), b"")
        return wire.subscriptions_in(answer.payload)


class TwoStreamers:
    """Both sides, linked."""

    def __init__(self, near: Side, far: Side) -> None:
        self.near = near
        self.far = far

    def start(self) -> None:
        """Start whichever is not running, and wait until they are linked."""
        for side in (self.near, self.far):
            side.thaw()
        down = [side for side in (self.near, self.far) if not side.running]
        for side in down:
            side.launch()
        for side in down:
            side.await_ready()
        for side in down:
            side.await_link()
        for side in (self.near, self.far):
            side.await_neighbour()

    def stop(self) -> None:
        """End both as a supervisor would, once nothing is under way between them; they must have kept their books.

        What the far side answers to one that has gone meanwhile would be left over, and it exits with 75, as it should.
        """
        sides = (self.near, self.far)
        for side in sides:
            side.thaw()
        if all(side.running for side in sides):
            eventually(lambda: self.near.subscribed_of(B) == self.far.subscribed_by(A), True)
        for side in sides:
            side.stop()

    @contextmanager
    def spy(self) -> Iterator[ZenohPeer]:
        """A stranger on the network between the streamers, who hears all of it.

        Not while a streamer dies: to the other one a link with somebody on it is not down. And not before the near side has
        noticed that somebody came: it asks everything anew then.
        """
        eventually(lambda: self.near.links, 1)  # an earlier spy may not have gone yet
        with ZenohPeer(self.near.ports.link, "spy") as peer:
            eventually(lambda: self.near.links, 2)
            probe, asked = self.near.witness, self.far.usubscription.at(wire.FETCH_SUBSCRIBERS)
            probe.wait_answering(asked, seen=lambda: bool(peer.inbox.all()))
            yield peer


def _router(port: int, connect: int | None = None) -> zenoh.Session:
    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    if connect is not None:
        config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{connect}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


@contextmanager
def two_streamers(directory: Path, far_usubscription: str = "") -> Iterator[TwoStreamers]:
    """Start both; at the end both must exit with 0 and have kept their books."""
    near_ports, far_ports = _ports()
    with ExitStack() as last_first:

        def side(authority: str, other: str, ports: Ports, link: int, lines: str = "") -> Side:
            own = directory / authority
            own.mkdir()
            made = Side(authority, other, ports, link, own, lines)
            last_first.callback(made.close)
            return made

        near = side(A, B, near_ports, far_ports.link)
        far = side(B, A, far_ports, near_ports.link, far_usubscription)
        both = TwoStreamers(near, far)
        both.start()
        try:
            yield both
        except BaseException as error:
            for each in (near, far):
                error.add_note(each.give_up())
            raise
        both.stop()
