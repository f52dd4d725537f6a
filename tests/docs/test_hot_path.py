# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md names the functions that one event passes: here an event passes them, under a profile function.

A whole streamer runs in this process, with its default plugins, a Zenoh network on either side and an ECU.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import zenoh

from benchmarks.harness.testbed import CLOUD_ENDPOINT, CONFIG
from benchmarks.traffic import sockets, wire
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.waiting import DEADLINE_S, wait_until
from ustreamer.host.runtime.process import load

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/architecture.md").read_text(encoding="utf-8")
BURST = 50
TOPICS = [wire.Address(wire.STREAMER, wire.OFFERED, wire.MAJOR, resource) for resource in (0x9001, 0x9002)]

Step = tuple[str, str]
"""Function and file."""
CalledSteps = list[tuple[int, Step]]
"""Each with the number of its callers."""

FAST_PATHS = re.findall(r"^\| `([\w.]+)` \| (\S+\.py) \|", PAGE.split("\n### Fast paths\n")[1], re.MULTILINE)
LABELS = {
    str(path.relative_to(REPO / "ustreamer")): found
    for path in (REPO / "ustreamer").rglob("*.py")
    if (
        found := re.findall(
            r"# Fast path of .*\n(?:^ *# .*\n)*", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
}
"""By file: the comments that name the oracle and the test of a fast path."""


def steps_on_page(title: str) -> CalledSteps:
    """The call tree of a section: depth, function and file of each line."""
    lines = PAGE.split(f"\n### {title}\n")[1].split("```\n")[1].splitlines()
    found = [re.fullmatch(r"( *)(\S+) +(\S+\.py)( .*)?", line) for line in lines]
    assert None not in found, lines
    return [(len(each[1]) // 2, (each[2], each[3])) for each in found if each is not None]


class CallTree:
    """A profile function for the threads that start after it: the functions that a receiving thread calls."""

    def __init__(self) -> None:
        self.thread_name = "none yet"
        self.steps: dict[tuple[Step, ...], None] = {}
        """The functions on the stack at each call, the outermost first. In order of the first call."""

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not threading.current_thread().name.startswith(self.thread_name):
            return
        stack: list[Step] = []
        each: FrameType | None = frame
        while each is not None:
            step = _step_of(each)
            if step is not None:
                stack.insert(0, step)
            elif each is frame:
                return
            each = each.f_back
        for depth in range(len(stack)):
            self.steps.setdefault(tuple(stack[: depth + 1]))

    def pop(self) -> CalledSteps:
        steps, self.steps = self.steps, {}
        return [(len(stack) - 1, stack[-1]) for stack in steps]


def _step_of(frame: FrameType) -> Step | None:
    """The function and file of a frame in this project; None for others, and for expressions within a function."""
    name, path = frame.f_code.co_qualname.rpartition("<locals>.")[2], Path(frame.f_code.co_filename)
    if name.startswith("<") or not path.is_relative_to(REPO / "ustreamer"):
        return None
    return name, str(path.relative_to(REPO / "ustreamer"))


class HotPathRig:
    """The streamer, an application in each Zenoh network, and the socket of an ECU."""

    def __init__(self, directory: Path) -> None:
        backbone, cloud = tcp_ports(2)
        someip, ecu, receiver = udp_ports(3)
        path = directory / "streamer.toml"
        ports = {"zenoh": backbone, "other": cloud, "someip": someip, "ecu": ecu, "receiver": receiver}
        path.write_text((CONFIG + CLOUD_ENDPOINT).format(**ports))
        self.call_tree = CallTree()
        threading.setprofile(self.call_tree)
        try:
            self.streamer = load(path).streamer()
            self.streamer.start()
        finally:
            threading.setprofile(None)
        self.source = sockets.zenoh_client(backbone)
        self.sink = sockets.zenoh_client(cloud)
        self.ecu = sockets.udp_socket(ecu, someip)
        self.received: set[bytes] = set()
        self._subscriber = self.sink.declare_subscriber("up/**", self._on_sample)
        self._number = 0
        self._publishers = {
            topic: self._open_publisher(self.source, wire.publish_key(topic)) for topic in TOPICS
        }

    @staticmethod
    def _open_publisher(session: zenoh.Session, key: str) -> zenoh.Publisher:
        """A publisher with a subscriber: without one, Zenoh drops a message silently."""
        publisher = session.declare_publisher(key)
        wait_until(lambda: publisher.matching_status.matching, key)  # type: ignore[attr-defined]
        return publisher

    def _on_sample(self, sample: zenoh.Sample) -> None:
        self.received.add(sample.payload.to_bytes())

    def _attachment(self, tail: bytes) -> bytes:
        self._number += 1
        return wire.attachment_head(time.time_ns() // 1_000_000, self._number) + tail

    def subscribe(self, topic: wire.Address) -> None:
        tail = wire.request_tail(wire.REMOTE_SUBSCRIBER, wire.SUBSCRIBE, 5_000)
        publisher = self._open_publisher(self.sink, wire.unicast_key(wire.REMOTE_SUBSCRIBER, wire.SUBSCRIBE))
        publisher.put(wire.subscription_request(topic), attachment=self._attachment(tail))
        wait_until(lambda: any(map(wire.is_subscribed, self.received)), "the response to Subscribe")
        self.received.clear()

    def send_over_zenoh(self, payload: bytes, topic: wire.Address = TOPICS[0]) -> None:
        self._publishers[topic].put(payload, attachment=self._attachment(wire.publish_tail(topic)))

    def send_over_someip(self, payload: bytes) -> None:
        self._number += 1
        self.ecu.send(wire.someip_event(wire.SERVICE, wire.EVENT, wire.session(self._number), payload))

    def path_of_event(self, thread_name: str, payload: bytes, send: Callable[[bytes], None]) -> CalledSteps:
        """The calls of the receiving thread for one event."""
        began = time.monotonic()
        self.call_tree.thread_name = thread_name
        send(payload)
        wait_until(lambda: payload in self.received, "an event")
        self.streamer.ledger()  # waits for the end of its dispatch
        self.call_tree.thread_name = "none"
        ended = time.monotonic()
        # Without a pause, the SOME/IP endpoint reads the next datagram as a batch.
        wait_until(lambda: time.monotonic() - ended > ended - began, "a pause")
        return self.call_tree.pop()

    def close(self) -> None:
        self.source.close()  # type: ignore[no-untyped-call]
        self.sink.close()  # type: ignore[no-untyped-call]
        self.ecu.close()
        self.streamer.stop()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotPathRig]:
    rig = HotPathRig(tmp_path_factory.mktemp("hot-path"))
    try:
        for topic in (*TOPICS, wire.ECU_TOPIC):
            rig.subscribe(topic)
        yield rig
    finally:
        rig.close()


@pytest.mark.parametrize(
    ("title", "thread_name", "send"),
    [
        ("One message between Zenoh networks", "zenoh backbone", HotPathRig.send_over_zenoh),
        ("One event from SOME/IP to Zenoh", "someip chassis", HotPathRig.send_over_someip),
    ],
)
def test_a_message_calls_the_functions_on_the_page_and_no_others(
    rig: HotPathRig, title: str, thread_name: str, send: Callable[[HotPathRig, bytes], None]
) -> None:
    expected, found = steps_on_page(title), list[CalledSteps]()
    deadline = time.monotonic() + DEADLINE_S
    while expected not in found and time.monotonic() < deadline:  # the first events build routes
        payload = f"{title} {len(found)}".encode()
        found.append(rig.path_of_event(thread_name, payload, lambda payload: send(rig, payload)))
    assert min(found, key=len) == expected


def test_messages_received_together_call_the_functions_on_the_page(rig: HotPathRig) -> None:
    left = {step for _, step in steps_on_page("Messages received together")}
    assert len(left) > 8

    def burst_calls_all() -> bool:
        for number in range(BURST):
            rig.send_over_zenoh(b"burst", TOPICS[number % 2])
        left.difference_update(stack[-1] for stack in list(rig.call_tree.steps))
        return not left

    rig.call_tree.thread_name = "zenoh backbone"
    try:
        wait_until(burst_calls_all, "a batch that passes every function of the page")
    finally:
        rig.call_tree.thread_name = "none"
    assert not left


def test_each_fast_path_of_the_page_is_labelled_in_its_file() -> None:
    assert len(FAST_PATHS) > 8
    for function, file in FAST_PATHS:
        assert file in LABELS
        assert f"def {function.rpartition('.')[2]}(" in (REPO / "ustreamer" / file).read_text(
            encoding="utf-8"
        )


@pytest.mark.parametrize("file", LABELS)
def test_each_fast_path_names_tests_that_exist(file: str) -> None:
    for label in LABELS[file]:
        named = re.findall(r"(tests/\S+\.py)::(\w+)", re.sub(r"\n *# ", "", label))
        assert named, label
        for path, test in named:
            assert f"def {test}(" in (REPO / path).read_text(encoding="utf-8"), label
