# SPDX-License-Identifier: Apache-2.0
"""A device whose uSubscription is another process: a streamer that follows it, and an application on each network."""

import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.wire import Uri

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
mode = "peer"
listen = ["tcp/127.0.0.1:{cloud}"]

[plugins.usubscription]
external = true

[plugins.throttle]
"""
USUBSCRIPTION: Final = Uri("hpc.vin1", 0, 3)
_QUIET_S: Final = 0.2


class ExternalDevice:
    """`backbone` and `cloud` are the ports of the networks. The uSubscription is on the first one, as is `hpc.vin1`.

    A subclass sets `publisher` and `reader`, which subscribes.
    """

    topic: Uri
    publisher: ZenohEntity
    reader: ZenohEntity
    subscriber_field = b""
    """The encoded field of the subscriber, for a uSubscription that requires it in requests."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.backbone, self.cloud = tcp_ports(2)
        config = directory / "streamer.toml"
        config.write_text(_CONFIG.format(backbone=self.backbone, cloud=self.cloud), encoding="utf-8")
        self._service: subprocess.Popen[bytes] | None = None
        self.streamer = stack.enter_context(StreamerProcess(config))
        stack.callback(self.kill_service)

    def start(self, command: Sequence[str | Path]) -> None:
        """Start the uSubscription; it prints a line when it serves."""
        self._service = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._service.stdout is not None
        assert self._service.stdout.readline() == b"READY\n"

    def kill_service(self) -> None:
        if self._service is not None:
            self._service.kill()
            self._service.wait()
            assert self._service.stdout is not None
            self._service.stdout.close()
            self._service = None

    def call(self, method: int) -> None:
        """Subscribe or Unsubscribe at that process."""
        payload = wire.topic_request(self.topic) + self.subscriber_field
        answer = self.reader.call(USUBSCRIPTION.at(method), payload)
        assert answer.head.commstatus in {None, wire.OK}, answer.status

    def flows(self) -> bool:
        """Whether a publication reaches the reader."""
        number = b"%d" % time.monotonic_ns()
        self.publisher.publish(self.topic, number)
        deadline = time.monotonic() + _QUIET_S
        while time.monotonic() < deadline:
            if any(each.payload == number for each in self.reader.events(self.topic)):
                return True
            time.sleep(0.005)
        return False

    def wait_flows(self, expected: bool) -> float:
        """Wait until publications are forwarded, or are not; returns how long that took."""
        began = time.monotonic()
        while self.flows() is not expected:
            assert time.monotonic() - began < DEADLINE_S, "the streamer does not follow"
        return time.monotonic() - began
