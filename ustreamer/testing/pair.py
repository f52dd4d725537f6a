# SPDX-License-Identifier: Apache-2.0
"""Two transports of one network, and what the tests of a contract need of them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import PROBE, code_of, four_messages, new_id
from ustreamer.testing.waiting import DEADLINE_S
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode


class Pair(NamedTuple):
    """Two transports of one network, not yet open: `a` for the entities of ALPHA, `b` for the entities of BETA."""

    a: EndpointTransport
    b: EndpointTransport


def now_s() -> float:
    """Monotonic time in seconds."""
    return SYSTEM_CLOCK.monotonic_ns() / 1e9


def resources() -> tuple[int, set[threading.Thread]]:
    """The number of open files of this process, except shared memory that a library keeps, and its threads."""
    files = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            files += not str(each.readlink()).startswith("/dev/shm/")  # noqa: S108  # compared, not opened
    return files, set(threading.enumerate())


class PairContract(ABC):
    """The base of a contract: the factory, and the fixtures that open and close what it makes."""

    listeners_above_limit: ClassVar[int] = 5_000
    """A number of listeners that the transport refuses."""
    close_within_s: ClassVar[float] = 20.0
    """The longest time of `close`, also while a listener hangs."""
    payload_sizes: ClassVar[Sequence[int]] = (0, 1, 1_400, 70_000, 1_000_000)
    """Sizes of payloads that the protocol carries, the largest one among them."""

    @abstractmethod
    def make_pair(self) -> AbstractContextManager[Pair]:
        """Two transports that can reach each other once `b` and then `a` are opened."""

    def messages(self) -> Sequence[UMessage]:
        """The messages from `a` to `b`: one of each type that the protocol supports."""
        return four_messages()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest for each test."""
        if "payload_size" in metafunc.fixturenames:
            metafunc.parametrize("payload_size", self.payload_sizes)

    def expected(self, sent: UMessage) -> UMessage:
        """The message that `b` receives for `sent`; overridden where the protocol drops part of a header."""
        return sent

    def wait_connected(self, pair: Pair) -> None:
        """Return when messages of `a` reach the listeners of `b` that are registered now."""
        arrived = Mailbox()
        pair.b.register_listener(PROBE, None, arrived)
        deadline = now_s() + DEADLINE_S
        while not arrived.messages:
            assert now_s() < deadline, f"no way from {pair.a} to {pair.b}"
            if code_of(lambda: pair.a.send(publish(new_id(), PROBE))) is not UCode.UNAVAILABLE:
                arrived.wait(1, 0.05)
        pair.b.unregister_listener(PROBE, None, arrived)

    @pytest.fixture
    def unopened(self) -> Iterator[Pair]:
        """The pair of one test, not opened; closed at its end."""
        with self.make_pair() as pair:
            try:
                yield pair
            finally:
                pair.a.close()
                pair.b.close()

    @pytest.fixture
    def pair(self, unopened: Pair) -> Pair:
        """The pair of one test, opened."""
        unopened.b.open()
        unopened.a.open()
        return unopened
