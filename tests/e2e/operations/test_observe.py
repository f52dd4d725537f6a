# SPDX-License-Identifier: Apache-2.0
"""Metrics and health of a streamer process with real traffic, and the files that name the metrics."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.e2e.rigs import vehicle as rig
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, SomeipNode, ZenohEntity, ecu_response
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, run_command, statistics
from tests.e2e.rigs.vehicle import Vehicle
from tests.waiting import wait_until

REPO: Final = Path(__file__).parents[3]
DASHBOARD: Final = REPO / "deploy/grafana/ustreamer.json"
ALERTS: Final = REPO / "deploy/prometheus/alerts.yml"
PROMETHEUS: Final = REPO / "deploy/prometheus/prometheus.yml"
PAGE: Final = REPO / "docs/operations.md"
METRICS_PAGE: Final = REPO / "docs/reference/metrics.md"
_NAME: Final = re.compile(r"\b(?:ustreamer|process|python)_[a-z_]+")
EVENTS: Final = 20


class Observed(NamedTuple):
    """A vehicle whose streamer serves its metrics at `port`."""

    vehicle: Vehicle
    port: int
    state_dir: Path

    def fetch(self, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def families(self) -> list[Metric]:
        status, body = self.fetch("/metrics")
        assert status == 200
        return list(text_string_to_metric_families(body.decode()))

    def series(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (each.name, frozenset(each.labels.items())): each.value
            for family in self.families()
            for each in family.samples
        }

    def report(self, path: str) -> tuple[int, dict[str, Any]]:
        status, body = self.fetch(path)
        report: dict[str, Any] = json.loads(body)
        return status, report


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    directory = tmp_path_factory.mktemp("observed")
    ports = rig.free_ports()
    config = rig.write_config(directory, ports)
    text = config.read_text(encoding="utf-8")
    config.write_text(f'{text}\n[observe]\nlisten = "127.0.0.1:0"\nlatency = true\n', encoding="utf-8")
    with (
        SomeipNode(ports.ecu, responder=ecu_response) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(config) as process,
    ):
        # READY is on another pipe than the log.
        (listening,) = wait_until(
            lambda: [each for each in process.log_records if each["event"] == "observe.listening"]
        )
        yield Observed(Vehicle(ports, process, ecu, receiver), listening["port"], directory / "state")


@pytest.fixture
def observed_app(observed: Observed) -> Iterator[ZenohEntity]:
    with ZenohEntity(observed.vehicle.ports.backbone, "hpc.vin1") as app:
        yield app


def test_the_figures_are_those_of_the_statistics(observed: Observed, observed_app: ZenohEntity) -> None:
    topic = observed.vehicle.unused_topic()
    observed_app.subscribe(topic)
    for number in range(EVENTS):
        observed.vehicle.send_event(topic, b"%d" % number)
    observed_app.wait_events(topic, EVENTS)
    # Announcements of Zenoh still arrive: compare two equal readings of the statistics with the scrape between them.
    state = observed.state_dir

    def scrape_at_rest() -> (
        tuple[dict[str, Any], Mapping[tuple[str, frozenset[tuple[str, str]]], float]] | None
    ):
        before, series, after = statistics(state), observed.series(), statistics(state)
        return (before, series) if before == after else None

    found, series = wait_until(scrape_at_rest, "two equal readings")  # type: ignore[misc]  # it is not None

    def value(name: str, **labels: str) -> float:
        return series[name, frozenset(labels.items())]

    def total(name: str, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(number for (each, has), number in series.items() if each == name and wanted <= has)

    ledger = found["ledger"]
    assert ledger["delivered"] >= EVENTS
    assert total("ustreamer_received_total") == ledger["received"]
    for verdict in ("delivered", "throttled", "expired", "dead_lettered", "denied", "no_subscriber"):
        assert total("ustreamer_deliveries_total", verdict=verdict) == ledger[verdict], verdict
    assert value("ustreamer_unaccounted") == found["unaccounted"] == 0
    for queue in found["egress_queues"]:
        endpoint = queue["endpoint"]
        assert value("ustreamer_queue_messages", endpoint=endpoint) == queue["queued"]
        assert value("ustreamer_queue_retries_total", endpoint=endpoint) == queue["retries"]
        delivered = value("ustreamer_deliveries_total", endpoint=endpoint, verdict="delivered")
        assert delivered == queue["delivered"]
    chassis = found["endpoints"]["chassis"]
    for event in ("datagrams", "received", "sent"):
        assert value("ustreamer_transport_events_total", endpoint="chassis", event=event) == chassis[event]
    assert value("ustreamer_transport_state", endpoint="chassis", state="calls_open") == 0
    name = f"up://chassis/{topic.ue_id:X}/{topic.version:X}/{topic.resource:X}"
    latency = "ustreamer_delivery_latency_seconds"
    route = {"ingress": "chassis", "endpoint": "backbone"}
    assert value(f"{latency}_count", **route) == value(f"{latency}_bucket", le="+Inf", **route) >= EVENTS
    assert 0 < value(f"{latency}_sum", **route) < EVENTS * DEADLINE_S
    (target,) = [each for each in found["targets"] if each["topic"] == name]
    assert target["delivered"] == EVENTS
    for verdict in ("received", "delivered", "throttled"):
        assert total(f"ustreamer_target_{verdict}_total", topic=name) == target[verdict], verdict


def test_the_process_is_alive_and_ready_when_its_links_are_up(
    observed: Observed, observed_app: ZenohEntity
) -> None:
    assert observed.report("/healthz") == (200, {"status": "alive", "reasons": [], "notices": []})
    with ZenohEntity(observed.vehicle.ports.cloud, "cloud"):
        ready = (200, {"status": "ready", "reasons": [], "notices": []})
        wait_until(lambda: observed.report("/readyz") == ready, "a ready streamer")
    reason = "endpoint 'cloud' reaches no receiver any more"
    not_ready = (503, {"status": "not_ready", "reasons": [reason], "notices": []})
    wait_until(lambda: observed.report("/readyz") == not_ready, "a streamer without the cloud")
    assert observed.report("/healthz")[0] == 200


def test_process_and_build_have_metrics(observed: Observed) -> None:
    names = {each.name for each in observed.families()}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= names
    assert {"python_info", "python_gc_collections", "ustreamer_build"} <= names


def test_an_address_in_use_ends_the_start_with_its_name(tmp_path: Path, observed: Observed) -> None:
    config = rig.write_config(tmp_path, rig.free_ports())
    text = config.read_text(encoding="utf-8")
    config.write_text(f'{text}\n[observe]\nlisten = "127.0.0.1:{observed.port}"\n', encoding="utf-8")
    done = run_command("run", config)
    assert (done.returncode, done.stdout) == (69, "")
    assert f"observe.listen 127.0.0.1:{observed.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_section_needs_a_restart(observed: Observed) -> None:
    config = observed.vehicle.process.config
    text = config.read_text(encoding="utf-8")
    try:
        config.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{tcp_ports(1)[0]}"), encoding="utf-8")
        done = run_command("reload", config)
    finally:
        config.write_text(text, encoding="utf-8")
    assert done.returncode != 0
    assert "observe.listen: needs a restart" in done.stderr
    assert observed.fetch("/healthz")[0] == 200


# --- the files that name the metrics ---------------------------------------------------------------------------------


def sample_names(observed: Observed) -> set[str]:
    """The names of the series, also of those that have none yet."""
    families = observed.families()
    suffixes = {"counter": "_total", "info": "_info"}
    return {sample.name for family in families for sample in family.samples} | {
        family.name + suffixes.get(family.type, "") for family in families
    }


def expressions(dashboard: dict[str, Any]) -> list[str]:
    queries = [
        each["query"]["query"]
        for each in dashboard["templating"]["list"]
        if "regex" not in each and isinstance(each["query"], dict)
    ]
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + queries


def test_every_metric_of_the_dashboard_exists(observed: Observed) -> None:
    used = [
        set(_NAME.findall(each)) for each in expressions(json.loads(DASHBOARD.read_text(encoding="utf-8")))
    ]
    assert len(used) > 15
    assert all(used)
    assert set[str]().union(*used) - sample_names(observed) == set()


def test_every_metric_of_the_alerts_exists(observed: Observed) -> None:
    rules = re.findall(r"^ +expr: (.+)$", ALERTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rules) >= 8
    used = set(_NAME.findall(" ".join(rules)))
    assert {"ustreamer_unaccounted", "ustreamer_endpoint_up", "ustreamer_store_degraded"} <= used
    assert used - sample_names(observed) == set()


def test_every_alert_is_explained_on_the_page() -> None:
    alerts = set(re.findall(r"^ +- alert: (\w+)$", ALERTS.read_text(encoding="utf-8"), re.MULTILINE))
    assert alerts == set(
        re.findall(r"^\| `(UStreamer\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )


def table_lines(families: list[Metric]) -> list[str]:
    """A table for each set of labels, in the order of the scrape."""
    tables: dict[str, list[str]] = {}
    for family in families:
        labels = {label for each in family.samples for label in each.labels} or _LABELS.get(
            family.name, set()
        )
        title = f"Labels: {', '.join(f'`{each}`' for each in sorted(labels))}." if labels else "No labels."
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        tables.setdefault(title, []).append(f"| `{name}` | {family.documentation} |")
    return [line for title, rows in tables.items() for line in (title, *rows)]


_LABELS: Final[Mapping[str, set[str]]] = {
    "ustreamer_delivery_latency_seconds": {"endpoint", "ingress", "le"},
    "ustreamer_queue_wait_seconds": {"endpoint", "ingress", "le"},
    "ustreamer_dead_letters": {"endpoint", "reason"},
    "ustreamer_intrusions": {"endpoint", "reason"},
    "ustreamer_subscriber_queue_messages": {"endpoint", "subscriber"},
    "ustreamer_subscriber_queue_bytes": {"endpoint", "subscriber"},
    "ustreamer_subscriber_queue_failures": {"endpoint", "subscriber"},
}
"""Of metrics without series here: tests/host/observe has streamers with them."""


def test_the_table_of_the_page_is_that_of_a_scrape(observed: Observed, observed_app: ZenohEntity) -> None:
    topic = observed.vehicle.unused_topic()
    observed_app.subscribe(topic)
    observed.vehicle.send_event(topic)
    observed_app.wait_events(topic)
    expected = table_lines([each for each in observed.families() if each.name.startswith("ustreamer_")])
    shown = re.findall(
        r"^(?:\| `ustreamer_|Labels: |No labels).*$", METRICS_PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert "\n".join(shown) == "\n".join(expected)


def test_promtool_accepts_the_alert_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH")
    for arguments in (["rules", str(ALERTS)], ["config", str(PROMETHEUS)]):
        done = subprocess.run([promtool, "check", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_subscribe_for_an_authority_behind_no_endpoint_is_counted(
    observed: Observed, observed_app: ZenohEntity
) -> None:
    def waiting() -> int:
        found: int = statistics(observed.state_dir)["plugins"]["usubscription"].get(
            "pending_without_endpoint", 0
        )
        return found

    before = waiting()
    topic = wire.Uri("mars", 1, 1, 0x8001)
    observed_app.send_request(wire.Uri("hpc.vin1", 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
    wait_until(lambda: waiting() == before + 1)
