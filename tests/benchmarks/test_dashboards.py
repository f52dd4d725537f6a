# SPDX-License-Identifier: Apache-2.0
"""The comparison with Crossbar runs, here with the streamer's own router in place of Crossbar. It asserts no speed."""

from pathlib import Path

from benchmarks.dashboards import crossbar
from benchmarks.traffic.wamp_servers import WampServerProcess, own_command


def own_router(port: int) -> WampServerProcess:
    return WampServerProcess("uStreamer", own_command(port), port)


def test_an_event_is_measured_on_every_way_and_none_is_lost(tmp_path: Path) -> None:
    result = crossbar.measure(tmp_path, dashboards=4, hz=50.0, seconds=1.0, rounds=1, router=own_router)
    assert list(result.event_us) == ["streamer", "sessions", "crossbar", "bridge", "bare"]
    assert all(each > 0 for each in result.event_us.values())
    assert list(result.lost) == [0, 0, 0]
    assert result.crossbar_ratio("streamer", "sessions") > 0
    assert crossbar.show(result).split()[:2] == ["4", "50"]
