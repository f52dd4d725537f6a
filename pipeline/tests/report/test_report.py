# SPDX-License-Identifier: Apache-2.0
"""The report of a fully known recording: its numbers, and its page in a browser."""

import csv
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.sample_lakes import list_lake
from ustreamer_pipeline import schemas
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.replay.files import files_of
from ustreamer_pipeline.report.gateway_pass import partial_tables
from ustreamer_pipeline.report.page import count, page, share
from ustreamer_pipeline.report.plots import micro
from ustreamer_pipeline.report.report import report
from ustreamer_pipeline.report.steps import step_width_s
from ustreamer_pipeline.report.tables import queues
from ustreamer_pipeline.schemas import Table

MS = 1_000_000
SECOND = 1_000 * MS
WALL_US = 1_763_700_000_000_000
Row = dict[str, Any]


def row(table: Table, **fields: Any) -> Row:
    assert not fields.keys() - set(table.names)
    return dict.fromkeys(table.names) | {"run": 1} | fields


def delivery(seq: int, at: int, **fields: Any) -> Row:
    known = {
        "seq": seq,
        "id_msb": 0x7000,
        "id_lsb": seq,
        "received_us": WALL_US + at // 1_000,
        "received_ns": at,
        "arrived_ns": at,
        "settled_ns": at + 200_000,
        "source": "//chassis/1/1/8001",
        "type": "PUBLISH",
        "priority": 1,
        "size": 100,
        "ingress": "chassis",
        "egress": "backbone",
        "verdict": "DELIVERED",
        "attempts": 1,
        "queue_wait_us": 100,
        "latency_us": 200,
        "held": False,
        "delivery": 1,
        "period_ns": 0,
        "tuned_ns": 0,
        "epoch": 0,
    }
    return row(schemas.DELIVERIES, **known | fields)


def recorded(gateway: str) -> list[Row]:
    """100 s of 10 Hz limited to 5 Hz; a burst of ten; expired, failed and unsubscribed messages; one message for two
    targets.
    """
    rows = []
    for n in range(1_001):
        verdict = "THROTTLED" if n % 2 else "DELIVERED"
        rows.append(delivery(n, n * SECOND // 10, verdict=verdict, period_ns=SECOND // 5))
    burst = {
        "source": "//chassis/2/1/8001",
        "egress": "tablet",
        "subscriber": "//tablet/1/1/0",
        "delivery": 2,
        "size": 1_000,
    }
    at = 50 * SECOND
    rows += [
        delivery(2_000 + n, at + n, settled_ns=at + (n + 1) * 10 * MS, latency_us=(n + 1) * 10_000, **burst)
        for n in range(10)
    ]
    rows.append(delivery(2_009, at + 9, source="//chassis/2/1/8001", egress="cloud", delivery=3, size=1_000))
    lost = {"attempts": 0, "egress": "tablet", "delivery": 2, "size": 7}
    rows += [
        delivery(3_000 + n, 60 * SECOND, verdict="EXPIRED", code=4, reason=f"waited {n} ms", **lost)
        for n in range(3)
    ]
    if gateway == "vin2":
        rows.append(
            delivery(
                3_010, 61 * SECOND, verdict="DEAD_LETTERED", code=8, reason="egress queue <is> full", **lost
            )
        )
    rows.append(
        delivery(
            3_020, 62 * SECOND, verdict="NO_SUBSCRIBER", egress=None, delivery=0, source="//chassis/3/1/8001"
        )
    )
    return sorted(rows, key=lambda each: int(each["received_ns"]))


def subscriptions() -> list[Row]:
    def change(number: int, at: int, what: str, subscriber: str = "//tablet/1/1/0") -> Row:
        return row(
            schemas.SUBSCRIPTIONS,
            number=number,
            time_us=WALL_US + at // 1_000,
            time_ns=at,
            topic="//chassis/2/1/8001",
            subscriber=subscriber,
            change=what,
            period_ns=0,
        )

    return [
        change(0, 0, "PRESENT"),
        change(1, 5 * SECOND, "SUBSCRIBED", "//tablet/2/1/0"),
        change(2, 20 * SECOND, "CHANGED"),
        change(3, 30 * SECOND, "UNSUBSCRIBED"),
        change(4, 40 * SECOND, "SUBSCRIBED"),
    ]


def speeds() -> list[Row]:
    """One value a second, rising by one."""
    return [
        row(
            schemas.SIGNALS,
            time_us=WALL_US + n * 1_000_000,
            time_ns=n * SECOND,
            id_msb=0x7000,
            id_lsb=n,
            topic=topic,
            signal="speed",
            value_double=float(n),
            unit="m/s",
        )
        for n in range(100)
        for topic in ("up://chassis/1/1/8001", "up://chassis/9/1/8001")
    ]


def write(lake: Path, gateway: str, table: Table, rows: list[Row]) -> None:
    stored = schemas.STORED_IN.get(table.folder, table)
    fields = [
        field.with_nullable(True) for field in stored.arrow_schema() if field.name not in ("date", "gateway")
    ]
    folder = lake / stored.folder / "date=2025-11-21" / f"gateway={gateway}"
    folder.mkdir(parents=True, exist_ok=True)
    named = [dict.fromkeys(stored.names) | {"table": table.name} | each for each in rows]
    pq.write_table(pa.Table.from_pylist(named, schema=pa.schema(fields)), folder / f"{table.name}.parquet")
    list_lake(lake)


@pytest.fixture(scope="module")
def out(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of the command."""
    lake, out = tmp_path_factory.mktemp("lake"), tmp_path_factory.mktemp("out") / "made"
    for gateway in ("vin1", "vin2"):
        write(lake, gateway, schemas.DELIVERIES, recorded(gateway))
        write(lake, gateway, schemas.SUBSCRIPTIONS, subscriptions())
    write(
        lake,
        "vin2",
        schemas.GAPS,
        [row(schemas.GAPS, cause="OVERRUN", first_seq=4_000, rows=12, from_us=0, until_us=0)],
    )
    for gateway in ("vin1", "vin2"):
        write(lake, gateway, schemas.SIGNALS, speeds())
    assert main(["report", str(lake), str(out), "--signal", "//chassis/1/1/8001:speed"]) == 0
    return out


@pytest.fixture(scope="module")
def tables(out: Path) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = json.loads((out / "report.json").read_text())["tables"]
    return found


def test_every_row_counts_once_and_the_worst_gateway_is_first(
    out: Path, tables: dict[str, list[Row]]
) -> None:
    whole = json.loads((out / "report.json").read_text())
    assert whole["totals"] == {
        "rows": 2_033,
        "delivered": 2 * 512,
        "throttled": 1_000,
        "expired": 6,
        "dead_lettered": 1,
        "denied": 0,
        "no_subscriber": 2,
    }
    assert whole["delivery_ratio"] == 1_024 / 1_031
    assert [each["gateway"] for each in tables["gateways"]] == ["vin2", "vin1"]
    assert tables["gateways"][0]["delivery_ratio"] == 512 / 516
    assert sum(each["rows"] for each in tables["over_time"]) == 2_033
    assert sum(each["rows"] for each in tables["fleet_over_time"]) == 2_033
    assert (whole["gateways"], whole["cut"]) == (2, {})
    assert whole["width_s"] == 1


def test_the_effect_of_throttling_is_in_hz(tables: dict[str, list[Row]]) -> None:
    assert len(tables["throttle"]) == 2
    for each in tables["throttle"]:
        assert each["published_hz"] == pytest.approx(10, rel=0.002)
        assert each["delivered_hz"] == pytest.approx(5, rel=0.002)
        assert each["limit_hz"] == 5
        assert each["saved_bytes"] == 50_000


def test_latency_is_per_link_of_the_fleet_and_of_each_gateway(tables: dict[str, list[Row]]) -> None:
    tablet = [each for each in tables["latency"] if each["egress"] == "tablet"]
    assert [each["gateway"] for each in tablet] == [None, "vin1", "vin2"]
    assert (tablet[0]["delivered"], tablet[0]["p50_us"], tablet[0]["p90_us"], tablet[0]["max_us"]) == (
        20,
        50_000,
        90_000,
        100_000,
    )


def test_queues_have_their_longest_moment(tables: dict[str, list[Row]]) -> None:
    peaks = {(each["gateway"], each["egress"]): each for each in tables["queues"]}
    assert peaks["vin1", "tablet"]["peak_messages"] == 10
    assert peaks["vin1", "tablet"]["peak_bytes"] == 10_000
    assert peaks["vin1", "backbone"]["peak_messages"] == 1


def test_a_message_that_leaves_a_queue_makes_room_for_one_of_that_moment(
    spark: SparkSession, tmp_path: Path
) -> None:
    one_by_one = [delivery(n, n * 5 * MS, settled_ns=(n + 1) * 5 * MS) for n in range(3)]
    write(tmp_path, "vin1", schemas.DELIVERIES, one_by_one)
    (found,) = queues(partial_tables(spark, files_of(str(tmp_path)), {})).collect()
    assert (found["peak_messages"], found["peak_bytes"]) == (1, 100)


def test_causes_of_loss_are_grouped_without_their_numbers(tables: dict[str, list[Row]]) -> None:
    assert [(each["cause"], each["rows"], each["gateways"]) for each in tables["losses"]] == [
        ("waited N ms", 6, 2),
        ("egress queue <is> full", 1, 1),
    ]
    assert [(each["gateway"], each["rows"]) for each in tables["missing"]] == [("vin2", 12)]


def test_traffic_by_source_counts_each_message_once(tables: dict[str, list[Row]]) -> None:
    first, second = tables["talkers"][:2]
    assert (first["source"], first["messages"], first["bytes"]) == (
        "//chassis/1/1/8001",
        2_009,
        2 * 1_001 * 100 + 7 * 7,
    )
    assert (second["source"], second["messages"], second["bytes"]) == ("//chassis/2/1/8001", 20, 20_000)


def test_a_subscription_lasts_from_start_to_end(tables: dict[str, list[Row]]) -> None:
    lives = [
        (each["subscriber"], each["seconds"], each["changes"])
        for each in tables["subscriptions"]
        if each["gateway"] == "vin1"
    ]
    assert lives == [("//tablet/1/1/0", 30.0, 1), ("//tablet/2/1/0", None, 0), ("//tablet/1/1/0", None, 0)]


def test_tables_are_files_that_a_spreadsheet_opens(out: Path) -> None:
    with (out / "gateways.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [each["gateway"] for each in rows] == ["vin2", "vin1"]
    assert rows[0]["from"] == "2025-11-21 04:40:00"
    assert (out / "losses.csv").read_text().startswith("verdict,code,cause,")


def test_figures_of_the_fleet_include_the_rows_that_no_table_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        verdict = "EXPIRED" if number == 0 else "DELIVERED"
        rows = [delivery(n, n * SECOND, verdict=verdict) for n in range(4)]
        write(tmp_path, f"vin{number}", schemas.DELIVERIES, rows)
    monkeypatch.setattr("ustreamer_pipeline.report.report.MAX_ROWS", 3)
    made = report(spark, str(tmp_path))
    assert (made.totals["rows"], made.totals["delivered"], made.delivery_ratio) == (20, 16, 0.8)
    assert [each["gateway"] for each in made.tables["gateways"]] == ["vin0", "vin1", "vin2"]
    assert (made.cut["gateways"], made.cut["over_time"], made.fleet["gateways"]) == (2, 17, 5)
    assert made.cut["fleet_over_time"] == 1  # with four steps in all
    assert {each["rows"] for each in made.tables["fleet_over_time"]} == {5}
    with pytest.raises(UsageError, match="--signal sped: no numbers; signals with numbers: none"):
        report(spark, str(tmp_path), signals=[("", "sped")])
    html = page(made, "a lake")
    assert "Covers 15 of 20 deliveries of all 5 gateways" in html
    assert "<h1>80.0\u202f% delivered, 4 lost</h1>" in html
    assert "20 deliveries of 5 gateways" in html


# --- the page ---------------------------------------------------------------------------------------------------------

PLOTS = ("over-time", "signal-0", "losses", "latency", "throttle", "queues", "talkers", "lifetimes")


class Ids(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.uses: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "id" and value:
                self.ids.append(value)
            if key in {"href", "xlink:href"} and value:
                assert value.startswith("#"), "nothing comes from elsewhere"
                self.uses.add(value[1:])
            if value and (found := re.search(r"url\(#([^)]+)\)", value)):
                self.uses.add(found[1])
            assert key != "src"
        assert tag not in {"script", "link", "iframe"}


def test_the_page_is_self_contained_with_unique_ids(out: Path) -> None:
    html = (out / "report.html").read_text()
    parser = Ids()
    parser.feed(html)
    assert len(parser.ids) == len(set(parser.ids))
    assert parser.uses <= set(parser.ids)
    assert "@import" not in html
    assert len(html) < 1_000_000


def test_a_chosen_signal_is_plotted_on_the_time_axis_of_the_rates(
    out: Path, tables: dict[str, list[Row]]
) -> None:
    rows = tables["signals"]
    assert {(each["topic"], each["unit"], each["values"], each["gateways"]) for each in rows} == {
        ("up://chassis/1/1/8001", "m/s", 2, 2)
    }
    assert [each["average"] for each in rows] == [float(n) for n in range(100)]
    html = (out / "report.html").read_text()
    assert "speed of up://chassis/1/1/8001, over time: from 0 to 99 m/s." in html


def test_each_figure_states_how_much_of_the_fleet_it_covers(out: Path) -> None:
    html = (out / "report.html").read_text()
    captions = re.findall(r"<figcaption><span>.*?</span>(.*?)\.</figcaption>", html)
    assert captions == [
        "Covers all 2\u202f033 deliveries of all 2 gateways",
        "Covers 200 values; at most all 2 gateways in a step",
        "Covers all 2 causes of all 2 gateways",
        "Covers all 1\u202f024 delivered messages of all 2 gateways",
        "Covers all 2 targets with a limit, on all 2 gateways",
        "Covers all 6 links, on all 2 gateways",
        "Covers all 3 sources of all 2 gateways",
        "Covers all 6 subscriptions, on all 2 gateways",
    ]
    assert f"These figures cover all 2 gateways and {share(2033 / 2045)} of the rows that are known." in html


def test_the_page_starts_with_the_result(out: Path) -> None:
    html = (out / "report.html").read_text()
    assert "<h1>99.3\u202f% delivered, 7 lost</h1>" in html
    assert "mostly expired at tablet: waited N ms" in html
    assert "2\u202f033 deliveries of 2 gateways, 2025-11-21 04:40:00 to 2025-11-21 04:41:40 UTC" in html
    assert "<is>" not in html  # gateway data is text, never markup
    assert "egress queue &lt;is&gt; full" in html


MEASURE = """<script>
const seen = [...document.querySelectorAll("figure.plot")].map(figure => {
  const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
  const drawn = [...svg.querySelectorAll("path, use")].filter(each => each.getBoundingClientRect().width > 0).length;
  const label = svg.querySelector("text");
  return [figure.id, Math.round(box.width), Math.round(box.height), drawn, svg.querySelectorAll("text").length,
          svg.querySelector("title").textContent, svg.querySelector("desc").textContent, getComputedStyle(label).fill];
});
document.querySelectorAll("details").forEach(each => each.open = true);
const clipped = [...document.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth)
  .map(each => each.querySelector("caption").textContent);
const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
document.body.innerHTML = "<pre id=measured>" + JSON.stringify({seen, wide, clipped}).replaceAll("<", "&lt;") + "</pre>";
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        missing = "no chromium here: the page was not opened (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1_300, 500])
def test_in_a_browser_every_plot_is_there(
    out: Path, chromium: str, tmp_path: Path, scheme: str, width: int
) -> None:
    measured = tmp_path / "measured.html"
    measured.write_text((out / "report.html").read_text().replace("</body>", MEASURE + "</body>"))
    dark = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    dom = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         f"--window-size={width},900", "--virtual-time-budget=5000", *dark, "--dump-dom", measured.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    ).stdout  # fmt: skip
    found = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:500]
    answer = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert [each[0] for each in answer["seen"]] == [f"plot-{name}" for name in PLOTS]
    for name, wide, high, drawn, texts, title, alt, ink in answer["seen"]:
        assert wide > 0.7 * min(width, 1_000), name
        assert high > 0.15 * wide, name
        assert (drawn > 5, texts > 4) == (True, True), name
        assert title, name
        assert len(alt) > len(title), name
        light = sum(map(int, re.findall(r"\d+", ink)[:3])) > 3 * 128
        assert light == (scheme == "dark"), f"{name}: letters are {ink} on a {scheme} page"
    assert not answer["wide"], "the page scrolls sideways"
    assert width < 1_300 or not answer["clipped"]


def test_on_paper_every_number_is_there_and_letters_are_dark(
    out: Path, chromium: str, tmp_path: Path
) -> None:
    printed = tmp_path / "printed.html"
    html = (out / "report.html").read_text().replace("@media print", "@media all")
    script = """<script>
const hidden = [...document.querySelectorAll("details table")].filter(each => !each.checkVisibility()).length;
document.body.innerHTML = "<pre id=measured>" + hidden + " " + getComputedStyle(document.body).color + "</pre>";
</script>"""
    printed.write_text(html.replace("</body>", script + "</body>"))
    dom = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--virtual-time-budget=5000", "--force-dark-mode", "--blink-settings=preferredColorScheme=0",
         "--dump-dom", printed.as_uri()],
        capture_output=True, text=True, timeout=100, check=True,
    ).stdout  # fmt: skip
    assert re.findall(r'<pre id="measured">(.*?)</pre>', dom) == ["0 rgb(0, 0, 0)"]


# --- number formats -----------------------------------------------------------------------------------------


def test_numbers_are_rounded_with_separators() -> None:
    assert [count(1_234_567), count(0), count(None)] == ["1\u202f234\u202f567", "0", "–"]
    assert [share(1.0), share(0.0), share(None), share(0.5)] == ["100\u202f%", "0\u202f%", "–", "50.0\u202f%"]
    assert [share(0.999999), share(0.00001)] == ["99.9999\u202f%", "0.001\u202f%"]
    assert [share(1 - 1e-12), share(1e-12)] == ["> 99.999999\u202f%", "< 0.000001\u202f%"]
    assert [micro(12), micro(1_500), micro(2_500_000)] == ["12 µs", "1.5 ms", "2.5 s"]
    assert [step_width_s(s) for s in (0, 120, 121, 7_200, 10**9)] == [1, 1, 2, 60, 86_400]


def test_a_lake_without_deliveries_is_an_error(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), str(tmp_path / "out")]) == 69
    assert "no deliveries there: ingest first" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path), str(tmp_path / "file")]) == 2
    assert "expected a folder" in capsys.readouterr().err
