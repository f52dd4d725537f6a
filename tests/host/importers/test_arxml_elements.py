# SPDX-License-Identifier: Apache-2.0
"""AUTOSAR elements: values, references, types and services of a loaded model."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from ustreamer.host.importers.arxml import adaptive, classic
from ustreamer.host.importers.arxml.elements import (
    InvalidArxml,
    ancestor,
    child,
    children,
    milliseconds,
    name_of,
    number,
    place_of,
    required_number,
    target,
    text,
)
from ustreamer.host.importers.arxml.types import AutosarPayloadTypes
from ustreamer.host.importers.catalogue import LeftOut, SdAddress

if TYPE_CHECKING:
    from autosar_data import AutosarModel, Element

FOLDER: Final = Path(__file__).with_name("arxml")


def model_of(name: str, *changes: tuple[str, str]) -> "AutosarModel":
    from autosar_data import AutosarModel

    content = (FOLDER / name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in content
        content = content.replace(old, new)
    model = AutosarModel()
    model.load_buffer(content, name, strict=False)
    return model


def element(model: "AutosarModel", path: str) -> "Element":
    found = model.get_element_by_path(path)
    assert found is not None
    return found


def test_values_are_read_by_path() -> None:
    model = model_of("adaptive.arxml")
    deployment = element(model, "/services/Chassis_SomeIp/state")
    assert (name_of(deployment), place_of(deployment)) == ("state", "/services/Chassis_SomeIp/state")
    assert (text(deployment, "TRANSPORT-PROTOCOL"), number(deployment, "EVENT-ID")) == ("UDP", 0x8001)
    assert milliseconds(deployment, "SEPARATION-TIME") == 2
    assert (
        text(deployment, "METHOD-REF"),
        number(deployment, "METHOD-ID"),
        child(deployment, "EVENT-GROUPS/EVENT-REFS"),
    ) == (None,) * 3
    assert list(children(deployment, "EVENT-GROUPS")) == []
    event = target(deployment, "EVENT-REF")
    assert event is not None
    assert place_of(event) == "/services/Chassis/state"
    package = ancestor(event, "AR-PACKAGE")
    assert package is not None
    assert name_of(package) == "services"


@pytest.mark.parametrize(("written", "value"), [("0x10", 16), ("0b11", 3), ("017", 15), ("0", 0)])
def test_a_number_may_have_the_prefix_of_its_base(written: str, value: int) -> None:
    model = model_of("adaptive.arxml", ("<METHOD-ID>0x10<", f"<METHOD-ID>{written}<"))
    assert number(element(model, "/services/Chassis_SomeIp/limit/get"), "METHOD-ID") == value


def test_a_missing_number_and_a_reference_to_nothing() -> None:
    model = model_of(
        "adaptive.arxml", (">/services/Chassis/state</EVENT-REF>", ">/services/None</EVENT-REF>")
    )
    deployment = element(model, "/services/Chassis_SomeIp/state")
    assert target(deployment, "EVENT-REF") is None
    with pytest.raises(InvalidArxml, match="METHOD-ID: missing; expected a number"):
        required_number(deployment, "METHOD-ID")


def test_a_structure_is_described_with_its_members_and_units() -> None:
    model, left_out = model_of("adaptive.arxml"), LeftOut()
    types = AutosarPayloadTypes(left_out)
    state = element(model, "/types/ChassisState")
    assert types.of(state, state) == "ChassisState"
    speed, gear, wheels, *_ = types.described["ChassisState"]["members"]
    assert (speed["type"], speed["unit"], gear["type"]) == ("f32", "m/s", "Gear")
    assert types.described[wheels["type"]] == {"kind": "array", "of": "f32", "count": 4}
    assert left_out.lines() == ()


def test_a_type_that_cannot_be_described_is_noted() -> None:
    model, left_out = model_of("adaptive.arxml"), LeftOut()
    types = AutosarPayloadTypes(left_out)
    assert types.of(element(model, "/types/Map"), element(model, "/services/Chassis/faults")) is None
    assert types.of(None, element(model, "/services/Chassis/state")) is None
    unknown, missing = left_out.lines()
    assert unknown.startswith("/services/Chassis/faults: its payload type is left out: /types/Map: category")
    assert missing == "/services/Chassis/state: its type is in no file: no payload type"


def test_services_of_the_adaptive_platform() -> None:
    model, left_out = model_of("adaptive.arxml"), LeftOut()
    [service] = adaptive.read_services(model, AutosarPayloadTypes(left_out), left_out)
    assert (service.service, service.instance, service.major) == (0x1234, 3, 2)
    assert adaptive.sd_address(model) == SdAddress("239.192.255.251", 30_490)
    assert list(classic.read_services(model, left_out)) == []


def test_services_of_the_classic_platform() -> None:
    model, left_out = model_of("classic.arxml"), LeftOut()
    services = list(classic.read_services(model, left_out))
    assert [each.service for each in services] == [0x2001]
    assert list(adaptive.read_services(model, AutosarPayloadTypes(left_out), left_out)) == []


def test_an_invalid_service_is_noted_and_left_out() -> None:
    model = model_of("classic.arxml", ("<SERVICE-IDENTIFIER>", "<SERVICE-IDENTIFIER>x"))
    left_out = LeftOut()
    assert list(classic.read_services(model, left_out)) == []
    assert any("left out:" in line and "SERVICE-IDENTIFIER" in line for line in left_out.lines())
