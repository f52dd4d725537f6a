# SPDX-License-Identifier: Apache-2.0
"""The reports of /healthz and /readyz, of a streamer in this process."""

import json
from http import HTTPStatus

import msgspec
import pytest

from tests.host.streamer_bench import Bench, bench, fake, link, no_notes
from ustreamer.host.config.observe import ObserveConfig
from ustreamer.host.observe.health import HANGING_NS, HealthReport, ThreadWatch, liveness, readiness
from ustreamer.host.observe.service import ObserveService
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.transport_port import ReceivingThread

__all__ = ["bench", "no_notes"]

S = 1_000_000_000


def report(streamer: Streamer, path: str) -> tuple[int, HealthReport]:
    service = ObserveService(ObserveConfig("127.0.0.1:0"), streamer.metrics_snapshot, SYSTEM_CLOCK)
    response = service.respond(path)
    assert response is not None
    assert response.content_type == "application/json"
    found = json.loads(response.body)
    return response.status, HealthReport(found["status"], tuple(found["reasons"]), tuple(found["notices"]))


def test_a_running_streamer_is_alive_and_ready(bench: Bench) -> None:
    streamer = bench.started(fake("a", "car"))
    assert report(streamer, "/healthz") == (HTTPStatus.OK, HealthReport("alive"))
    assert report(streamer, "/readyz") == (HTTPStatus.OK, HealthReport("ready"))


def test_a_lost_link_is_named_and_the_process_stays_alive(bench: Bench) -> None:
    streamer = bench.started(fake("a", "car"), fake("b", "cloud"))
    link(streamer, "b").set_link(up=False)
    reason = "endpoint 'b' has reached no receiver yet"
    assert report(streamer, "/readyz") == (503, HealthReport("not_ready", (reason,)))
    assert report(streamer, "/healthz") == (200, HealthReport("alive"))
    link(streamer, "b").set_link(up=True)
    assert report(streamer, "/readyz") == (200, HealthReport("ready"))
    link(streamer, "b").set_link(up=False)
    assert report(streamer, "/readyz")[1].reasons == ("endpoint 'b' reaches no receiver any more",)


def test_a_suspect_node_is_a_notice_while_its_link_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamer = bench.started(fake("a", "car"), fake("b", "cloud"))
    suspicion = "the node has acknowledged no data for 1.2 s although data waits"
    monkeypatch.setattr(link(streamer, "b"), "link_suspicion", lambda: suspicion)
    notice = f"endpoint 'b': {suspicion}; a node may be frozen or cut off"
    assert report(streamer, "/readyz") == (200, HealthReport("ready", (), (notice,)))
    link(streamer, "b").set_link(up=False)
    assert report(streamer, "/readyz")[1].notices == ()


@pytest.mark.parametrize(("problem", "blocked"), [("receiver_stalled", 7), ("receiver_stalled", 0), ("", 7)])
def test_a_stalled_receiver_next_to_others_is_named_while_messages_wait_for_it(
    bench: Bench, problem: str, blocked: int
) -> None:
    before = bench.started(fake("a", "car"), fake("b", "cloud")).metrics_snapshot(0)
    [changed] = (each for each in before.endpoints if each.name == "b")
    queue = msgspec.structs.replace(changed.queue, blocked=blocked)
    snapshot = before._replace(endpoints=[changed._replace(link_problem=problem, queue=queue)])
    reason = "endpoint 'b' has a receiver that stopped reading, next to others that read; 7 messages wait"
    assert readiness(snapshot, ()).reasons == ((reason,) if problem and blocked else ())


def test_a_store_that_refuses_writes_is_named_until_it_accepts_one(bench: Bench) -> None:
    streamer = bench.started(fake("a", "car"))
    path = str(streamer.dead_letter_writer.store.path)
    streamer.context.stores.on_refused(path, "no space left on the device")
    reason = "store 'dead-letters' accepts no writes: no space left on the device"
    assert report(streamer, "/readyz") == (503, HealthReport("not_ready", (reason,)))
    streamer.context.stores.on_written(path)
    assert report(streamer, "/readyz") == (200, HealthReport("ready"))


# --- receiving threads -----------------------------------------------------------------------------------------------


def hanging(*observations: tuple[int, int, bool]) -> list[str]:
    """The last answer for observations of one thread: seconds, turns, and whether it waits for input."""
    watch = ThreadWatch()
    found: list[str] = []
    for seconds, turns, waiting in observations:
        found = watch.hanging([("a", ReceivingThread("receiver", turns, waiting))], seconds * S)
    return found


HANGS = ["receiving thread 'receiver' of endpoint 'a' makes no progress for 12 s"]


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        ([(0, 5, False), (12, 5, False)], HANGS),
        ([(0, 5, False), (6, 5, False), (12, 5, False)], HANGS),
        ([(0, 5, False)], []),
        ([(0, 5, False), (9, 5, False)], []),
        ([(0, 5, False), (12, 6, False)], []),
        ([(0, 5, True), (12, 5, True)], []),
        ([(0, 5, True), (12, 5, False)], []),  # it may have begun just now
        ([(0, 5, False), (11, 6, False), (12, 6, False)], []),
    ],
)
def test_a_thread_that_neither_waits_nor_makes_a_turn_hangs(
    observations: list[tuple[int, int, bool]], expected: list[str]
) -> None:
    assert hanging(*observations) == expected


def test_a_hanging_thread_makes_the_process_neither_alive_nor_ready(bench: Bench) -> None:
    streamer = bench.started(fake("a", "car"))
    assert HANGING_NS == 10 * S
    assert liveness(HANGS) == HealthReport("hanging", tuple(HANGS))
    assert readiness(streamer.metrics_snapshot(0), HANGS) == HealthReport("not_ready", tuple(HANGS))
