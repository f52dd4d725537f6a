# SPDX-License-Identifier: Apache-2.0
"""A Zenoh subscriber that is frozen: it is named as a receiver that stopped reading, also after its link is closed."""

import json
import signal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.delivery.flood_processes import TOPICS
from tests.e2e.delivery.test_backpressure import (
    FLOOD,
    FloodProcess,
    Streamed,
    subscribed_streamer,
    wait_flood_begins,
)
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import run_command
from tests.waiting import wait_until
from ustreamer.host.cli.main import ExitCode

pytestmark = pytest.mark.timeout(300)
QUEUE = 10_000
"""Messages of the flood that wait for the frozen receiver: its queue has room for so many."""
CLOSED_S = 30.0
"""Zenoh closes the link after 5 s without progress."""


def cause_of(config: Path, subject: str = "//stopped/2001/1/0", sample: str = "0") -> dict[str, Any]:
    answer = run_command("why", subject, config, "--json", "--sample", sample, within=20.0)
    found: dict[str, Any] = json.loads(answer.stdout)["findings"][0]
    return found


def test_a_frozen_subscriber_with_few_messages_is_no_lost_link(tmp_path: Path) -> None:
    """Its kernel takes all messages, so no data waits; but nothing comes from it, and Zenoh ends the link."""
    config, topic = tmp_path / "backpressure.toml", TOPICS[0]
    with (
        subscribed_streamer(tmp_path, "stopped") as (process, ports),
        FloodProcess("receive", ports["stopped"]) as stopped,
        ZenohEntity(ports["source"], topic.authority, topic.ue_id) as publisher,
    ):
        stopped.wait_ready()

        def is_received() -> bool:
            publisher.publish(topic, bytes(7) + b"\1")
            return stopped.counted().received > 0

        def is_lost() -> bool:
            publisher.publish(topic, bytes(7) + b"\1")
            return cause_of(config)["cause"] not in ("healthy", "publisher_silent")

        wait_until(is_received, "the first message")
        stopped.send_signal(signal.SIGSTOP)
        wait_until(is_lost, "the suspicion", CLOSED_S)
        assert cause_of(config)["cause"] in ("node_suspect", "receiver_stalled")
        wait_until(lambda: cause_of(config)["cause"] == "receiver_stalled", "the end of the link", CLOSED_S)
        stopped.send_signal(signal.SIGCONT)
        process.stop((ExitCode.OK, ExitCode.NOT_DRAINED))  # if the subscriber is not back yet


def readiness(port: int) -> dict[str, Any]:
    """The body of /readyz, with any status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/readyz")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found


def test_a_frozen_subscriber_is_suspect_and_then_a_receiver_that_stopped_reading(tmp_path: Path) -> None:
    config = tmp_path / "backpressure.toml"
    [port] = tcp_ports(1)
    with (
        subscribed_streamer(tmp_path, "stopped", more=f'[observe]\nlisten = "127.0.0.1:{port}"\n') as (
            process,
            ports,
        ),
        FloodProcess("receive", ports["stopped"]) as stopped,
    ):
        stopped.wait_ready()
        with FloodProcess("publish", FLOOD, ports["source"]) as publisher:
            publisher.wait_ready()
            wait_flood_begins(stopped)
            stopped.send_signal(signal.SIGSTOP)
            # Before the end of the flood: a slow machine needs longer for it than the link stays open.
            wait_until(lambda: readiness(port)["notices"], "the suspicion", CLOSED_S)
            assert cause_of(config)["cause"] in ("node_suspect", "receiver_stalled")
            assert publisher.ask() == FLOOD
        wait_until(
            lambda: Streamed.read(tmp_path).endpoints["stopped"]["links_closed_stalled"] == 1,
            "the end of the link",
            CLOSED_S,
        )
        found = cause_of(config)
        assert found["cause"] == "receiver_stalled"
        assert "stopped reading" in found["text"]
        stopped.send_signal(signal.SIGCONT)
        wait_until(lambda: stopped.counted().received > QUEUE // 2, "what had waited", CLOSED_S)
        wait_until(lambda: cause_of(config)["cause"] != "receiver_stalled", "the receiver", CLOSED_S)
        assert Streamed.read(tmp_path).endpoints["stopped"]["links"] == 1
        process.stop()


def test_a_frozen_subscriber_is_named_while_another_node_of_its_endpoint_reads(tmp_path: Path) -> None:
    config, topic = tmp_path / "backpressure.toml", TOPICS[0]
    [port] = tcp_ports(1)
    with (
        subscribed_streamer(tmp_path, "stopped", more=f'[observe]\nlisten = "127.0.0.1:{port}"\n') as (
            process,
            ports,
        ),
        ZenohEntity(ports["stopped"], "stopped", 0x2002, listen_to="up/none/**"),
        FloodProcess("receive", ports["stopped"]) as stopped,
        ZenohEntity(ports["source"], topic.authority, topic.ue_id) as publisher,
    ):
        stopped.wait_ready()

        def is_received() -> bool:
            publisher.publish(topic, bytes(7) + b"\1")
            return stopped.counted().received > 0

        def reasons() -> list[str]:
            publisher.publish(topic, bytes(7) + b"\1")
            found: list[str] = readiness(port)["reasons"]
            return [each for each in found if "has a receiver that stopped reading" in each]

        wait_until(is_received, "the first message")
        stopped.send_signal(signal.SIGSTOP)
        wait_until(reasons, "the end of the link", CLOSED_S)
        for subject in (f"//{topic.authority}/{topic.ue_id:X}/1/{topic.resource:X}", "//stopped/2001/1/0"):
            found = cause_of(config, subject)
            assert found["cause"] == "receiver_stalled", found
            assert "up://stopped/2001/1/0" in found["text"]
            assert found["since_ms"] > 0
        stopped.send_signal(signal.SIGCONT)
        wait_until(lambda: not reasons(), "the receiver", CLOSED_S)
        assert cause_of(config)["cause"] != "receiver_stalled"
        process.stop((ExitCode.OK, ExitCode.NOT_DRAINED))  # if its session is connecting again
