# SPDX-License-Identifier: Apache-2.0
"""Two vehicles: a streamer each, a Zenoh network of applications behind each, and a third network between them.

The networks of applications are routers in the process of the test, so applications survive the kill of a streamer.
The network between the streamers consists only of their two sessions. So the kill of a streamer takes the link down.
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

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, eventually
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Uri

NEAR_AUTHORITY: Final = "a.vin1"
"""The near side, with the subscribers."""
FAR_AUTHORITY: Final = "b.vin1"
"""The far side, with the topics."""

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
may_reset = ["//*/0/FF/0"]
{usubscription}
[plugins.throttle]
"""


class SidePorts(NamedTuple):
    """TCP ports of one side: its applications' network, and the port where its streamer listens for the other one."""

    network: int
    link: int


def link_port_pairs() -> tuple[SidePorts, SidePorts]:
    numbers = tcp_ports(4)
    return SidePorts(*numbers[:2]), SidePorts(*numbers[2:])


class StreamerSide:
    """A streamer that can die and restart, and the permanent network of its applications."""

    def __init__(
        self,
        authority: str,
        other: str,
        ports: SidePorts,
        other_link: int,
        directory: Path,
        usubscription: str,
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
        self._is_frozen = False
        self._was_stopped = True  # killed by the test; it must print nothing
        self._network = open_router(ports.network)
        self.probe = Subscriber(ports.network, authority)
        """A permanent application that queries the lists."""

    @property
    def running(self) -> bool:
        """True if it is started and not killed; AssertionError if it has exited unexpectedly."""
        if not self._was_stopped and not self.process.is_alive:
            self.kill()  # which closes its pipes
            raise AssertionError(
                f"the streamer of {self.authority} exited unexpectedly\n{self.process.output}"
            )
        return not self._was_stopped

    @property
    def process(self) -> StreamerProcess:
        assert self._process is not None, f"the streamer of {self.authority} was never started"
        return self._process

    # --- start and kill -------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the streamer without waiting."""
        assert not self.running
        self._process = StreamerProcess(self._config)
        self._was_stopped = False

    def wait_ready(self) -> None:
        """Wait until it responds to its applications."""
        self.process.wait_ready()
        self.probe.wait_responding(self.usubscription.at(wire.FETCH_SUBSCRIBERS))

    def wait_link_up(self) -> None:
        """Wait until it has been connected to the other side."""
        self.process.stderr.wait_one(lambda line: "link_up" in line and '"link"' in line)

    def wait_peer(self) -> None:
        """Wait until it was notified that the other side is connected. It then repeats all earlier requests."""

        def known_peers() -> list[str]:
            records = [each for each in self.process.log_records if each["event"] == "streamer.peers"]
            return records[-1]["present"] if records else []

        eventually(known_peers, [self._other])

    @property
    def link_count(self) -> int:
        """The number of its peer nodes on the network between the streamers."""
        found: int = statistics(self._directory / "state")["endpoints"]["link"]["links"]
        return found

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """SIGKILL, also while stopped; unread messages are lost."""
        self.process.kill()
        self._was_stopped, self._is_frozen = True, False

    def freeze(self) -> None:
        """SIGSTOP: the link stays up, messages wait in the socket, and no request is answered."""
        process = self.process._process
        process.send_signal(signal.SIGSTOP)
        self._is_frozen = True
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # a signal is not there at once

    def thaw(self) -> None:
        if self._is_frozen:
            self.process._process.send_signal(signal.SIGCONT)
        self._is_frozen = False

    def lose_state(self) -> None:
        """Empty the state_dir of a killed streamer."""
        assert not self.running
        shutil.rmtree(self._directory / "state")

    def stop(self) -> None:
        """End it as a supervisor does; its ledger must balance."""
        self.thaw()
        if self.running:
            self._was_stopped = True
            self.process.stop()

    def kill_and_describe(self) -> str:
        """Kill it if it runs; returns its output."""
        if not self._was_stopped:
            self.kill()
        return f"output of the streamer of {self.authority}:\n{self.process.output}" if self._process else ""

    def close(self) -> None:
        """Remove all resources, whatever has failed."""
        self.kill_and_describe()
        self.probe.close()
        self._network.close()  # type: ignore[no-untyped-call]

    # --- requests -------------------------------------------------------------------------------------------

    def new_application(self) -> Subscriber:
        """A new application behind this side; the caller closes it."""
        return Subscriber(self.ports.network, self.authority)

    def listed_states(self, topic: Uri) -> dict[Uri, int]:
        """Subscribers of `topic` in the list of this side, with their states."""
        answer = self.probe.call_successfully(
            self.usubscription.at(wire.FETCH_SUBSCRIPTIONS), wire.topic_request(topic)
        )
        return {each.subscriber: each.state for each in wire.subscriptions_in(answer.payload)}

    def subscribers(self, topic: Uri) -> list[Uri]:
        """Subscribers by FetchSubscribers."""
        answer = self.probe.call_successfully(
            self.usubscription.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topic)
        )
        return sorted(wire.subscribers_in(answer.payload))

    def topics_of(self, authority: str) -> set[Uri]:
        """The topics of an authority that have a subscriber here."""
        return {each.topic for each in self._all_subscriptions() if each.topic.authority == authority}

    def topics_subscribed_by(self, authority: str) -> set[Uri]:
        """The topics that the uSubscription of an authority has subscribed here, in any version."""
        listed = self._all_subscriptions()
        return {e.topic for e in listed if (e.subscriber.authority, e.subscriber.ue_id) == (authority, 0)}

    def _all_subscriptions(self) -> list[wire.SubscriptionEntry]:
        answer = self.probe.call_successfully(self.usubscription.at(wire.FETCH_SUBSCRIPTIONS), b"")
        return wire.subscriptions_in(answer.payload)


class TwoStreamers:
    """Both sides, linked."""

    def __init__(self, near: StreamerSide, far: StreamerSide) -> None:
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
            side.wait_ready()
        for side in down:
            side.wait_link_up()
        for side in (self.near, self.far):
            side.wait_peer()

    def stop(self) -> None:
        """End both with SIGTERM once no message is in transit; their ledgers must balance.

        The far side would retain its responses to a subscriber that has left, and would exit with 75, as specified.
        """
        sides = (self.near, self.far)
        for side in sides:
            side.thaw()
        if all(side.running for side in sides):
            eventually(
                lambda: self.near.topics_of(FAR_AUTHORITY) == self.far.topics_subscribed_by(NEAR_AUTHORITY),
                True,
            )
        for side in sides:
            side.stop()

    @contextmanager
    def spy(self) -> Iterator[ZenohEntity]:
        """An independent session on the network between the streamers. It receives all messages.

        Not while a streamer is killed: the other streamer's link would count as up with any session on it. Not before
        the near side has detected a new session: at link up it repeats all requests.
        """
        eventually(lambda: self.near.link_count, 1)  # an earlier spy may still be connected
        with ZenohEntity(self.near.ports.link, "spy") as peer:
            eventually(lambda: self.near.link_count, 2)
            probe, method = self.near.probe, self.far.usubscription.at(wire.FETCH_SUBSCRIBERS)
            probe.wait_responding(method, condition=lambda: bool(peer.inbox.items()))
            yield peer


def open_router(port: int, connect: int | None = None) -> zenoh.Session:
    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    if connect is not None:
        config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{connect}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


@contextmanager
def two_streamers(directory: Path, far_usubscription: str = "") -> Iterator[TwoStreamers]:
    """Start both; at the end both must exit with 0 and a balanced ledger."""
    near_ports, far_ports = link_port_pairs()
    with ExitStack() as exit_stack:

        def side(authority: str, other: str, ports: SidePorts, link: int, lines: str = "") -> StreamerSide:
            own = directory / authority
            own.mkdir()
            created = StreamerSide(authority, other, ports, link, own, lines)
            exit_stack.callback(created.close)
            return created

        near = side(NEAR_AUTHORITY, FAR_AUTHORITY, near_ports, far_ports.link)
        far = side(FAR_AUTHORITY, NEAR_AUTHORITY, far_ports, near_ports.link, far_usubscription)
        both = TwoStreamers(near, far)
        both.start()
        try:
            yield both
        except BaseException as error:
            for each in (near, far):
                error.add_note(each.kill_and_describe())
            raise
        both.stop()
