# SPDX-License-Identifier: Apache-2.0
"""The alert rules and the dashboard in a real Prometheus: each alert fires, and each panel has its series."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

from tests.e2e.rigs import vehicle as rig
from tests.e2e.rigs.entities import DEADLINE_S, Metronome, SomeipNode, ZenohEntity, ecu_response
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import Vehicle
from tests.waiting import wait_until

REPO: Final = Path(__file__).parents[3]
ALERTS: Final = REPO / "deploy/prometheus/alerts.yml"
SCRAPES: Final = REPO / "deploy/prometheus/prometheus.yml"
DASHBOARD: Final = REPO / "deploy/grafana/ustreamer.json"
INSTANCE: Final = "127.0.0.1:9464"
EMPTY_WHEN_WELL: Final = {
    "ustreamer_queue_blocked_messages",
    "ustreamer_refused_total",
    "ustreamer_dead_letters_total",
    "ustreamer_subscriber_queue_messages",
}
"""Metrics of panels without a series in a vehicle where all is well."""


# --- the rules --------------------------------------------------------------------------------------------------------

FAULTS: Final[Mapping[str, tuple[str, str, str]]] = {
    # alert: the series, its values when all is well, its values at the fault; one value a minute
    "UStreamerDown": ('up{job="ustreamer"}', "1+0x10", "1 0+0x10"),
    "UStreamerUnaccounted": ("ustreamer_unaccounted", "0+0x10", "0 -3+0x10"),
    "UStreamerDeadLetters": (
        'ustreamer_deliveries_total{endpoint="cloud",verdict="dead_lettered"}',
        "7+0x10",
        "0+1x10",
    ),
    "UStreamerDeadLettersNotStored": ("ustreamer_dead_letters_not_persisted_total", "7+0x10", "0+1x10"),
    "UStreamerLinkDown": ('ustreamer_endpoint_up{endpoint="cloud"}', "1+0x10", "1 0+0x10"),
    "UStreamerStoreDegraded": ('ustreamer_store_degraded{store="spool"}', "0+0x10", "0 1+0x10"),
    "UStreamerQueueOld": ('ustreamer_queue_oldest_age_seconds{endpoint="cloud"}', "9+0x10", "0 30+60x10"),
    "UStreamerQueueAlmostFull": (
        'ustreamer_queue_messages{endpoint="cloud"}',
        "70+0x10",
        "0 90+0x10",
    ),
    "UStreamerIntrusion": ('ustreamer_intrusion_peers{endpoint="cloud"}', "0+0x10", "0 2+0x10"),
    "UStreamerPasswordGuesses": (
        'ustreamer_refused_total{endpoint="dashboard",reason="login_limit"}',
        "7+0x10",
        "0+1x10",
    ),
    "UStreamerPluginErrors": (
        'ustreamer_plugin_errors_total{endpoint="cloud",kind="filter"}',
        "7+0x10",
        "0+1x10",
    ),
}
LIMIT: Final = {"series": 'ustreamer_queue_limit_messages{endpoint="cloud"}', "values": "100+0x10"}


def firing(promtool: str, directory: Path, alert: str, values: str) -> bool:
    """Whether `alert` fires 6 minutes after the start of these values, by `promtool test rules`."""
    series = [{"series": FAULTS[alert][0], "values": values}, LIMIT]
    question = {"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', "eval_time": "6m"}
    tests = [
        {"interval": "1m", "input_series": series, "promql_expr_test": [{**question, "exp_samples": samples}]}
        for samples in ([{"labels": "{}", "value": 1}], [])
    ]
    results, output = [], ""
    for number, each in enumerate(tests):
        file = directory / f"{number}.json"  # JSON is YAML
        file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [each]}), encoding="utf-8")
        done = subprocess.run(
            [promtool, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False
        )
        results.append(done.returncode == 0)
        output += done.stdout + done.stderr
    assert sorted(results) == [False, True], output  # exactly one of the answers is right
    return results[0]


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool on PATH")
    return found


def test_every_alert_has_a_fault() -> None:
    assert set(re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8"))) == FAULTS.keys()


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_at_its_fault_and_not_without(alert: str, promtool: str, tmp_path: Path) -> None:
    _, well, fault = FAULTS[alert]
    assert firing(promtool, tmp_path, alert, fault)
    assert not firing(promtool, tmp_path, alert, well)


# --- the dashboard ----------------------------------------------------------------------------------------------------


class Prometheus:
    """A Prometheus with the shipped configuration, but for the ports and the interval."""

    def __init__(self, program: str, directory: Path, streamer_port: int) -> None:
        self._port = tcp_ports(1)[0]
        config = directory / "prometheus.yml"
        text = SCRAPES.read_text(encoding="utf-8")
        assert INSTANCE in text
        text = text.replace(INSTANCE, f"127.0.0.1:{streamer_port}").replace(
            "scrape_interval: 5s", "scrape_interval: 1s"
        )
        config.write_text(text, encoding="utf-8")
        shutil.copy(ALERTS, directory)
        self._log = directory / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, **query: str) -> Any:
        """The `data` of an answer of the HTTP API; None while Prometheus starts."""
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8")
        connection = HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(query)}")
            response = connection.getresponse()
            body = json.loads(response.read() or b"{}") if response.status != 503 else {}
        except ConnectionRefusedError:
            return None
        finally:
            connection.close()
        assert body.get("status") != "error", body
        return body.get("data")

    def values(self, expression: str) -> Sequence[float]:
        data = self.get("query", query=expression)
        return [float(each["value"][1]) for each in data["result"]] if data else []

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[tuple[Prometheus, Vehicle]]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus on PATH")
    ports, observe = rig.free_ports(), tcp_ports(1)[0]
    config = rig.write_config(tmp_path, ports)
    text = config.read_text(encoding="utf-8")
    config.write_text(f'{text}\n[observe]\nlisten = "127.0.0.1:{observe}"\n', encoding="utf-8")
    with (
        SomeipNode(ports.ecu, responder=ecu_response) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(config) as process,
    ):
        prometheus = Prometheus(program, tmp_path, observe)
        try:
            yield prometheus, Vehicle(ports, process, ecu, receiver)
        finally:
            prometheus.stop()


def panels() -> list[tuple[str, str]]:
    """Title and expression of each query of the dashboard, with the values that Grafana puts in."""
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [
        (panel["title"], target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s"))
        for panel in found
        for target in panel["targets"]
    ]


def test_every_panel_of_the_dashboard_has_live_series(scraped: tuple[Prometheus, Vehicle]) -> None:
    prometheus, vehicle = scraped
    with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app:
        topic = vehicle.unused_topic()
        app.subscribe(topic)
        with Metronome(50, lambda number: vehicle.send_event(topic, b"%d" % number)):
            rate = 'sum(rate(ustreamer_deliveries_total{verdict="delivered"}[10s]))'
            wait_until(lambda: any(each > 25 for each in prometheus.values(rate)), "a rate of 50 Hz")
            empty = {title for title, expression in panels() if not prometheus.values(expression)}
            without = {
                title for title, expression in panels() if any(name in expression for name in EMPTY_WHEN_WELL)
            }
    assert empty <= without
    assert len({title for title, _ in panels()} - without) >= 10
    rules = prometheus.get("rules")["groups"][0]["rules"]
    assert {each["name"] for each in rules} == FAULTS.keys()
    assert {each.get("lastError", "") for each in rules} == {""}
