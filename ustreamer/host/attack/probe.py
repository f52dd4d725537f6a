# SPDX-License-Identifier: Apache-2.0
"""The vehicle path under observation: a steady stream in a process of its own, and windows of its latencies."""

import subprocess
import sys
from types import TracebackType
from typing import Final, Self

import msgspec

from ustreamer.host.attack.target import Target
from ustreamer.host.attack.verdicts import StreamWindow
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

PROBE_HZ: Final = 400
PROBE_ENTITY: Final = 0xA77A
"""The ue_id of the subscriber, on the network `Target.home`."""
ORIGIN_TOPIC: Final = (0xA77B, 1, 0x8001)
"""ue_id, version and resource of the topic of a path that starts at a Zenoh network."""
READY: Final = "READY\n"


class ProbePlan(msgspec.Struct, frozen=True):
    """The vehicle path as plain values. `event` is service, event and major; None if the path starts at `origin`.

    `home` and `origin` are authority and locator of a Zenoh network. `ecu` and `streamer` are the ends of the event.
    """

    topic: str
    usubscription: str
    home: tuple[str, str]
    ecus: tuple[tuple[str, int], ...]
    origin: tuple[str, str] | None = None
    event: tuple[int, int, int] | None = None
    ecu: tuple[str, int] | None = None
    streamer: tuple[str, int] | None = None


def probe_topic(target: Target) -> UUri:
    """The topic of the stream."""
    if target.event is not None:
        return target.event.topic
    assert target.origin is not None
    return UUri(target.origin.authority, *ORIGIN_TOPIC)


def plan(target: Target) -> ProbePlan:
    event, origin = target.event, target.origin
    return ProbePlan(
        str(probe_topic(target)),
        str(target.usubscription_address),
        (target.home.authority, target.home.locator),
        target.ecus,
        None if origin is None else (origin.authority, origin.locator),
        None if event is None else (event.service, event.event, event.major),
        None if event is None else event.ecu,
        None if event is None else event.streamer,
    )


class VehicleProbe:
    """The probe of one streamer. `take` ends a window."""

    def __init__(self, target: Target) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ustreamer.host.attack.probe_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._target = target

    def __enter__(self) -> Self:
        """Wait until messages arrive. Raises UStatusError(UNAVAILABLE) if none does."""
        self._requests.write(msgspec.json.encode(plan(self._target)).decode() + "\n")
        self._requests.flush()
        answer = self._answers.readline()
        if answer != READY:
            self.__exit__(None, None, None)
            raise UStatusError(UCode.UNAVAILABLE, f"the vehicle path carries nothing: {answer.strip()}")
        return self

    def take(self) -> StreamWindow:
        """The messages since the last call. Waits up to half a second for those on their way."""
        self._requests.write("take\n")
        self._requests.flush()
        line = self._answers.readline()
        if not line:
            raise UStatusError(UCode.UNAVAILABLE, "the probe of the vehicle path has ended")
        return msgspec.json.decode(line, type=StreamWindow)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._answers.close()
