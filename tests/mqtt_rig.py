# SPDX-License-Identifier: Apache-2.0
"""A real MQTT broker, mosquitto, as a process of a test, and an MQTT client that is not the plugin's."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.e2e.rigs.ports import tcp_ports
from tests.waiting import DEADLINE_S, wait_until

MOSQUITTO: Final = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
needs_mosquitto: Final = pytest.mark.skipif(MOSQUITTO is None, reason="needs the broker mosquitto")


class Mosquitto:
    """A broker on loopback. `lines` are further lines of its configuration. Its data survive a `kill` and a `start`."""

    def __init__(self, directory: Path, lines: Sequence[str] = (), port: int = 0) -> None:
        assert MOSQUITTO is not None
        self.port = port or tcp_ports(1)[0]
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._directory = directory / f"mosquitto-{self.port}"
        self._directory.mkdir()
        self._config = self._directory / "mosquitto.conf"
        anonymous = (
            [] if any(line.startswith("allow_anonymous") for line in lines) else ["allow_anonymous true"]
        )
        text = [
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {self._directory}/",
            "max_queued_messages 100000",
            *anonymous,
            *(
                ["user root"] if os.geteuid() == 0 else []
            ),  # else it becomes a user that may not read our files
            *lines,
        ]
        self._config.write_text("\n".join(text) + "\n", encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen([MOSQUITTO, "-c", str(self._config)], stdout=log, stderr=log)
        wait_until(self._accepts, "the broker")

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text(encoding="utf-8")
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def save(self) -> None:
        """Write sessions and queued messages to disk, so that they survive a kill."""
        database = self._directory / "mosquitto.db"
        before = database.stat().st_mtime_ns if database.exists() else 0
        self.send_signal(signal.SIGUSR1)
        wait_until(lambda: database.exists() and database.stat().st_mtime_ns > before, "the saved sessions")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order: it writes its sessions to disk."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            if number is signal.SIGTERM:
                process.send_signal(signal.SIGCONT)
            process.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class PlainClient:
    """A client of the library without uStreamer. It records what it receives, and keeps its session in an outage."""

    def __init__(self, port: int, client_id: str, filters: Sequence[str] = (), **login: str) -> None:
        self._received: list[MQTTMessage] = []
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self._filters = filters
        self.client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.reconnect_delay_set(1, 1)
        if login:
            self.client.username_pw_set(**login)
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._on_message
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = 600
        self.client.connect("127.0.0.1", port, clean_start=False, properties=session)
        self.client.loop_start()
        assert self._subscribed.wait(DEADLINE_S), "not subscribed"

    def _on_connect(self, client: Client, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if not self._filters:
            self._subscribed.set()
        elif not flags.session_present:
            client.subscribe([(each, 1) for each in self._filters])

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        with self._changed:
            self._received.append(message)
            self._changed.notify_all()

    @property
    def received(self) -> list[MQTTMessage]:
        with self._changed:
            return list(self._received)

    def wait(self, count: int, timeout_s: float = DEADLINE_S) -> list[MQTTMessage]:
        """All packets, once there are `count` or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._received) >= count, timeout_s)
            return list(self._received)

    def publish(
        self,
        topic: str,
        user: Sequence[tuple[str, str]],
        payload: bytes = b"",
        *,
        qos: int = 1,
        content_type: str | None = None,
        correlation_data: bytes | None = None,
        expiry_s: int | None = None,
    ) -> None:
        """Publish a packet with these properties, and wait for its acknowledgement."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for pair in user:
            properties.UserProperty = pair
        if content_type is not None:
            properties.ContentType = content_type
        if correlation_data is not None:
            properties.CorrelationData = correlation_data
        if expiry_s is not None:
            properties.MessageExpiryInterval = expiry_s
        info = self.client.publish(topic, payload, qos, properties=properties)
        assert info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS
        info.wait_for_publish(DEADLINE_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def plain_client(
    port: int, client_id: str, filters: Sequence[str] = (), **login: str
) -> Iterator[PlainClient]:
    client = PlainClient(port, client_id, filters, **login)
    try:
        yield client
    finally:
        client.close()


def read_packets(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """First byte and content of each packet, until the end of the connection."""
    with connection.makefile("rb") as stream:
        while head := stream.read(1):
            length = shift = 0
            while True:
                (byte,) = stream.read(1)
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            yield head[0], stream.read(length)
