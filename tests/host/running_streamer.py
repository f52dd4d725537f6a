# SPDX-License-Identifier: Apache-2.0
"""The rig of admin and CLI tests: a streamer with its admin socket, in this process, between in-process networks.

It differs from `streamer_bench`: it starts from a configuration file and includes the admin server and reload.
"""

from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.host.waiting import DEADLINE_S
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION
from ustreamer.host.admin.server import AdminServer
from ustreamer.host.runtime import process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.control import Control
from ustreamer.host.storage.state_lock import StateLock
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import ANY, UUri

INSIDE, OUTSIDE = "inside", "outside"
BASE: Final = {INSIDE: ("hpc", "car"), OUTSIDE: ("cloud",)}


class RunningStreamer:
    """Endpoints `inside` (hpc, car) and `outside` (cloud), and the sections that a test adds."""

    def __init__(self, directory: Path, *more: str) -> None:
        self.directory = directory
        self.path = directory / "ustreamer.toml"
        self.networks = {name: LocalNetwork.named(f"{directory.name}/{name}") for name in BASE}
        self.write(*more)
        loaded = process.load(self.path)
        self.state_dir = loaded.config.state_dir
        self.streamer = loaded.streamer()
        self.control = Control(self.streamer, loaded.path, lambda path: process.load(path).config)
        self.server = AdminServer(self.state_dir, self.control.handle_request, SYSTEM_CLOCK)
        self._lock = StateLock(self.state_dir)
        self._apps: list[LocalTransport] = []

    def write(
        self, *more: str, authorities: "dict[str, tuple[str, ...]] | None" = None, head: str = ""
    ) -> None:
        """Write another configuration."""
        lives = BASE | (authorities or {})
        lines = [head or 'authority = "hpc"\nstate_dir = "state"']
        for name, network in self.networks.items():
            who = ", ".join(f'"{each}"' for each in lives[name])
            lines.append(
                f'[endpoints.{name}]\ntransport = "local"\nnetwork = "{network.name}"\nauthorities = [{who}]'
            )
        self.path.write_text("\n".join([*lines, *more, ""]), encoding="utf-8")

    def app(self, network: str, authority: str) -> LocalTransport:
        self._apps.append(LocalTransport(self.networks[network], authority))
        self._apps[-1].open()
        return self._apps[-1]

    def listen(self, network: str, authority: str, sink: UUri | None) -> list[UMessage]:
        """The messages that an address there receives from now on, without changes of subscriptions."""
        received: list[UMessage] = []

        def on_message(message: UMessage) -> None:
            if sink is not None or message.attributes.source.ue_id != USUBSCRIPTION:
                received.append(message)

        self.app(network, authority).register_listener(ANY, sink, on_message)
        return received

    def __enter__(self) -> Self:
        self._lock.acquire()
        self.server.open()
        self.streamer.start()
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close(DEADLINE_S)
        left = self.streamer.stop(DEADLINE_S)
        for app in self._apps:
            app.close()
        self._lock.release()
        if error is None:
            assert left == 0
            assert self.streamer.ledger().unaccounted == 0
