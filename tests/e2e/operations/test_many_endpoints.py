# SPDX-License-Identifier: Apache-2.0
"""Many endpoints: threads grow in line with them, and messages go from each to each."""

from contextlib import ExitStack
from pathlib import Path

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess

ENDPOINTS = 32
THREADS_PER_ENDPOINT = 7
THREADS_OF_THE_PROCESS = 20


def threads_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))


def test_many_endpoints_start_with_a_few_threads_each_and_reach_each_other(tmp_path: Path) -> None:
    ports = tcp_ports(ENDPOINTS)
    sections = [
        f"""
[endpoints.e{number}]
transport = "zenoh"
authorities = ["{"hpc.vin1" if number == 0 else f"net{number}"}"]
listen = ["tcp/127.0.0.1:{port}"]
"""
        for number, port in enumerate(ports)
    ]
    config = tmp_path / "streamer.toml"
    config.write_text(
        'authority = "hpc.vin1"\nstate_dir = "state"\n' + "".join(sections) + "[plugins.usubscription]\n"
    )
    with StreamerProcess(config) as streamer, ExitStack() as entities:
        assert threads_of(streamer.pid) <= ENDPOINTS * THREADS_PER_ENDPOINT + THREADS_OF_THE_PROCESS
        first = entities.enter_context(ZenohEntity(ports[0], "hpc.vin1", 0x10A1))
        last = entities.enter_context(ZenohEntity(ports[-1], f"net{ENDPOINTS - 1}"))
        topic = wire.Uri("hpc.vin1", 0x10A1, 1, 0x8001)
        last.subscribe(topic)
        first.publish(topic, b"21.5")
        assert [each.payload for each in last.wait_events(topic)] == [b"21.5"]
