# SPDX-License-Identifier: Apache-2.0
"""Probes: which device is called in its other version, when, and which answers count."""

import pytest
from ustreamer_usubscription.remote.version_probes import PROBE_DELAY_MS, VersionProbe, VersionProbes

from ustreamer.core.base.links import LinkState
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

DEVICE = "far.vin1"
DELAY_NS = PROBE_DELAY_MS * 1_000_000
LIFETIME_MS = 300_000
LIFETIME_NS = LIFETIME_MS * 1_000_000
PROBE = VersionProbe(UUID(1, 2), DEVICE, UUri(DEVICE, 5, 1, 0x8001), 4)


class Links:
    def __init__(self) -> None:
        self.state = LinkState(up=True, up_count=1)

    def state_of(self, authority: str) -> LinkState:
        assert authority == DEVICE
        return self.state


@pytest.fixture
def links() -> Links:
    return Links()


@pytest.fixture
def probes(links: Links) -> VersionProbes:
    found = VersionProbes(links.state_of)
    found.on_call(DEVICE, 0)
    return found


def answer(reqid: UUID | None, authority: str = DEVICE) -> UAttributes:
    source = UUri(authority, 0, 4, 1)
    return UAttributes(type=UMessageType.RESPONSE, source=source, sink=UUri("here", 0, 4, 0), reqid=reqid)


def test_a_device_is_probed_once_after_the_delay_and_again_after_the_lifetime(probes: VersionProbes) -> None:
    assert list(probes.pop_due(DELAY_NS - 1)) == []
    assert list(probes.pop_due(DELAY_NS)) == [DEVICE]
    probes.begin([PROBE], DELAY_NS, LIFETIME_MS)
    probes.on_call(DEVICE, DELAY_NS)  # a further call of the same silence
    assert probes.next_due_ns() == DELAY_NS + LIFETIME_NS
    assert list(probes.pop_due(DELAY_NS + LIFETIME_NS)) == [DEVICE]


def test_an_answer_ends_the_probes_until_the_next_call(probes: VersionProbes) -> None:
    probes.end(DEVICE)
    assert probes.next_due_ns() is None
    probes.on_call(DEVICE, 7)
    assert probes.next_due_ns() == 7 + DELAY_NS


def test_only_the_answer_of_the_device_to_its_probe_counts(probes: VersionProbes) -> None:
    assert probes.find(answer(PROBE.reqid)) is None
    list(probes.pop_due(DELAY_NS))
    probes.begin([PROBE], DELAY_NS, LIFETIME_MS)
    assert probes.find(answer(PROBE.reqid)) is PROBE
    assert probes.find(answer(PROBE.reqid, "other.vin1")) is None
    assert probes.find(answer(UUID(3, 4))) is None
    assert probes.find(answer(None)) is None


def test_a_device_behind_a_lost_link_is_not_probed_but_after_the_link_came_up(
    probes: VersionProbes, links: Links
) -> None:
    links.state = LinkState(up=False, up_count=1)
    assert list(probes.pop_due(DELAY_NS)) == []
    links.state = LinkState(up=True, up_count=2)
    probes.on_call(DEVICE, DELAY_NS)
    assert list(probes.pop_due(2 * DELAY_NS)) == [DEVICE]


def test_a_call_that_a_dispatcher_refused_needs_no_probe(probes: VersionProbes) -> None:
    probes.on_undelivered(DEVICE)
    assert probes.next_due_ns() is None
