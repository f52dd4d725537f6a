# SPDX-License-Identifier: Apache-2.0
"""A device whose uSubscription is another process: streamers that follow it, and an application on each network."""

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
from tests.e2e.rigs.two_streamers import open_router
from tests.e2e.rigs.wire import Uri

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "{state_dir}"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "{mode}"
{key} = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
mode = "{mode}"
{key} = ["tcp/127.0.0.1:{cloud}"]

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

    def __init__(
        self, directory: Path, stack: ExitStack, *, streamers: int = 1, has_routers: bool = False
    ) -> None:
        """Several `streamers` have the same authority, and a router on each network."""
        has_routers = has_routers or streamers > 1
        self.backbone, self.cloud = tcp_ports(2)
        self._service: subprocess.Popen[bytes] | None = None
        if has_routers:
            for port in (self.backbone, self.cloud):
                stack.callback(open_router(port).close)
        mode, key = ("client", "connect") if has_routers else ("peer", "listen")
        self.streamers = [
            stack.enter_context(self._streamer(directory, f"streamer{number}", mode, key))
            for number in range(streamers)
        ]
        self.streamer = self.streamers[0]
        stack.push(self._stop_streamers)
        stack.callback(self.kill_service)

    def _stop_streamers(self, kind: type[BaseException] | None, *_: object) -> None:
        """The service has been killed, so a request to it may be unsent: exit code 75."""
        for each in self.streamers if kind is None else ():
            each.stop((0, 75))

    def _streamer(self, directory: Path, name: str, mode: str, key: str) -> StreamerProcess:
        """A streamer whose endpoints `listen` or `connect` at the ports of the networks."""
        config = directory / f"{name}.toml"
        text = _CONFIG.format(
            state_dir=f"state-{name}", mode=mode, key=key, backbone=self.backbone, cloud=self.cloud
        )
        config.write_text(text, encoding="utf-8")
        return StreamerProcess(config)

    def start(self, command: Sequence[str | Path]) -> None:
        """Start the uSubscription; it prints a line when it serves. Then the one before is killed."""
        service = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert service.stdout is not None
        assert service.stdout.readline() == b"READY\n"
        self.kill_service()
        self._service = service

    def signal_service(self, number: int) -> None:
        assert self._service is not None
        self._service.send_signal(number)

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
