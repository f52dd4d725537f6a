# SPDX-License-Identifier: Apache-2.0
"""`ustreamer demo --metrics`: metrics and the page for operators of the running demo."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.waiting import DEADLINE_S, wait_until
from ustreamer.host.cli.main import parser
from ustreamer.host.demo.vehicle import DemoVehicle


def fetch(url: str, path: str) -> bytes:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        return response.read()
    finally:
        connection.close()


def delivered(url: str) -> float:
    families = text_string_to_metric_families(fetch(url, "/metrics").decode())
    values = [
        float(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "ustreamer_deliveries_total" and sample.labels["verdict"] == "delivered"
    ]
    return sum(values)


def test_the_metrics_of_the_demo_count_its_messages_and_the_page_is_there() -> None:
    with DemoVehicle(metrics=0) as vehicle:
        url = vehicle.metrics_page
        assert url is not None
        first = delivered(url)
        wait_until(lambda: delivered(url) > first + 100, "100 more messages")
        assert b"<!doctype html>" in fetch(url, "/").lower()
        assert vehicle.finish().unaccounted == 0
    with pytest.raises(ConnectionRefusedError):
        fetch(url, "/metrics")


@pytest.mark.parametrize(
    ("arguments", "port"),
    [([], None), (["--metrics"], 9464), (["--metrics", "0"], 0), (["--metrics", "9000"], 9000)],
)
def test_the_option_has_a_default_port(arguments: list[str], port: int | None) -> None:
    assert parser().parse_args(["demo", *arguments]).metrics == port
