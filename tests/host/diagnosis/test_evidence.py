# SPDX-License-Identifier: Apache-2.0
"""The evidence about an address, of a streamer in this process."""

from pathlib import Path
from typing import Final

from tests.host.running_streamer import INSIDE, RunningStreamer
from ustreamer.core.routing.router import SELF
from ustreamer.host.runtime.evidence import FileState, collect_evidence
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import publish, request
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("hpc", 0x1234, 1, 0x8001)
METHOD: Final = UUri("cloud", 1, 1, 1)
SMALL: Final = "[egress.outside]\nqueue_bytes = 1"


def test_the_evidence_about_a_topic_has_decision_endpoints_and_file(tmp_path: Path) -> None:
    with RunningStreamer(tmp_path) as running:
        running.app(INSIDE, "hpc").send(publish(new_id(), TOPIC))
        sources = running.streamer.diagnosis_sources()
        found = collect_evidence(sources, TOPIC, None, 0.0, (), FileState(("egress.x",)))
    assert (found.home, found.running, found.unloaded_keys) == (INSIDE, True, ("egress.x",))
    assert [each.verdict for each in found.explanations] == ["no_subscriber"]
    assert [(each.ingress, each.source) for each in found.routes] == [(INSIDE, TOPIC)]
    assert set(found.endpoints) == {"inside", "outside", SELF}
    assert found.home_endpoint is not None
    assert found.home_endpoint.after is not None
    assert found.home_endpoint.after.received == 1


def test_the_evidence_about_a_method_has_its_callers_and_dead_letters(tmp_path: Path) -> None:
    with RunningStreamer(tmp_path, SMALL) as running:
        caller = UUri("hpc", 0x10, 1, 0)
        running.app(INSIDE, "hpc").send(request(new_id(), caller, METHOD, ttl=1_000))
        found = collect_evidence(running.streamer.diagnosis_sources(), METHOD, None, 0.0)
        given = collect_evidence(running.streamer.diagnosis_sources(), METHOD, caller, 0.0)
    assert [(each.source, each.sink) for each in found.routes] == [(caller, METHOD)]
    assert [(each.sink, each.count) for each in found.letters] == [(METHOD, 1)]
    assert [each.ingress for each in found.explanations] == [INSIDE]
    assert given.source == caller


def test_a_streamer_that_does_not_run_is_not_sampled(tmp_path: Path) -> None:
    streamer = RunningStreamer(tmp_path).streamer
    router = streamer.router_with([])
    found = collect_evidence(streamer.diagnosis_sources(router=router), UUri("cloud", 1, 1, 0), None, 1.0)
    assert (found.running, found.sample_s, found.subscriptions) == (False, 0.0, ())
    assert found.endpoints["outside"].after is None
