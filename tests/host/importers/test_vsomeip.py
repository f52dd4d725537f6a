# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import vsomeip`: the conversion of a vsomeip host's JSON, with a report of every omission."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.host.cli import check, import_command
from ustreamer.host.cli.main import ExitCode, main
from ustreamer.host.config import config as configuration
from ustreamer.host.config.endpoint_text import toml_text
from ustreamer.host.importers.vsomeip.importer import (
    LIMIT_BYTES,
    ImportedEndpoint,
    ImportOptions,
    InvalidVsomeipJson,
    import_file,
    import_vsomeip,
)
from ustreamer.host.importers.vsomeip.service_discovery import multicast_eventgroups
from ustreamer.host.importers.vsomeip.tcp import protocol_of
from ustreamer.transports import BuiltinTransports
from ustreamer.transports.someip.config import EventConfig, EventgroupConfig, MethodConfig, SomeipEndpoint
from ustreamer.transports.someip.protocol.tp_config import TpSegmentation
from ustreamer.transports.someip.sd.config import SdConfig, SdTimings
from ustreamer.uprotocol.ustatus import UCode, UStatusError

# In the style of vsomeip's own examples and users: numbers are strings.
GATEWAY: dict[str, Any] = {
    "unicast": "127.0.0.1",
    "netmask": "255.0.0.0",
    "device": "lo",
    "logging": {
        "level": "info",
        "console": "true",
        "file": {"enable": "false", "path": "/tmp/x.log"},
        "dlt": "false",
    },
    "applications": [{"name": "notify-sample", "id": "0x1277"}, {"name": "client-sample", "id": "0x1255"}],
    "services": [
        {
            "service": "0x1234",
            "instance": "0x5678",
            "reliable": {"port": "30509", "enable-magic-cookies": "false"},
            "unreliable": "30500",
            "events": [
                {"event": "0x8778", "is_field": "true", "update-cycle": "2000"},
                {"event": "0x8779", "is_field": "false", "is_reliable": "true"},
                {"event": "34682"},
            ],
            "eventgroups": [
                {
                    "eventgroup": "0x4465",
                    "events": ["0x8778", "0x8779"],
                    "multicast": {"address": "224.225.226.233", "port": "32344"},
                    "threshold": "8",
                },
                {"eventgroup": "0x4466", "events": ["0x8779", "0x877B"]},
            ],
            "someip-tp": {
                "service-to-client": [
                    "0x0421",
                    {"method": "66", "max-segment-length": "1392", "separation-time": "20"},
                ],
                "client-to-service": ["0x8778"],
            },
            "debounce-times": {
                "responses": {"0x0422": {"debounce-time": "20", "maximum-retention-time": "200"}}
            },
        },
        {"service": "0x1235", "instance": "0x1", "unreliable": {"port": "30501"}},
        {"service": "0x2001", "instance": "0x1", "unicast": "127.0.0.9", "unreliable": "40000"},
        {"service": "0x2002", "instance": "0x1", "unicast": "127.0.0.9", "reliable": {"port": "40001"}},
    ],
    "clients": [
        {"service": "0x2001", "instance": "0x1", "unreliable": [40000, 40002]},
        {"service": "0x2003", "instance": "0x1"},
    ],
    "routing": "notify-sample",
    "service-discovery": {
        "enable": "true",
        "multicast": "224.244.224.245",
        "port": "30490",
        "protocol": "udp",
        "initial_delay_min": "10",
        "initial_delay_max": "100",
        "repetitions_base_delay": "200",
        "repetitions_max": "3",
        "ttl": "3",
        "cyclic_offer_delay": "2000",
        "request_response_delay": "1500",
    },
    "npdu-default-timings": {"debounce-time-request": "0"},
    "some-new-key": {},
}
STATIC = {**GATEWAY, "service-discovery": {"enable": "false"}}


def imported(data: dict[str, Any], **options: Any) -> ImportedEndpoint:
    return import_vsomeip(data, ImportOptions(**options))


def written(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "vsomeip.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def service_of(endpoint: SomeipEndpoint, service: int) -> Any:
    (found,) = [each for each in endpoint.services if each.service == service]
    return found


# --- imported settings -----------------------------------------------------------------------------------------------


def test_the_services_of_the_host_are_offered_and_those_of_others_are_of_the_network() -> None:
    endpoint = imported(GATEWAY).endpoint

    assert (endpoint.bind, endpoint.port, endpoint.authorities) == ("127.0.0.1", 30500, ("vehicle",))
    assert [(each.service, each.offered, each.remote) for each in endpoint.services] == [
        (0x1234, True, None),
        (0x1235, True, None),
        (0x2001, False, "127.0.0.9:40000"),
        (0x2002, False, None),
        (0x2003, False, None),
    ]


def test_ids_and_event_groups_are_carried_over() -> None:
    service = service_of(imported(GATEWAY).endpoint, 0x1234)

    assert (service.instance, service.major) == (0x5678, 0)
    assert service.provider == "//gateway/56781234/0/0"
    assert service.events == (
        EventConfig(0x8778, 0x4465, field=True),
        EventConfig(0x8779, (0x4465, 0x4466), "tcp"),
        EventConfig(34682),
        EventConfig(0x877B, 0x4466),
    )
    assert service.method_ids == (66, 0x421, 0x422)


def test_an_event_that_a_group_lists_twice_is_in_it_once() -> None:
    groups = [{"eventgroup": 1, "events": ["0x8001", "0x8001"]}, {"eventgroup": 2, "events": ["0x8001"]}]
    found = imported({"unicast": "10.0.0.1", "services": [{"service": 1, "eventgroups": groups}]})
    assert found.endpoint.services[0].events == (EventConfig(0x8001, (1, 2)),)


def test_tp_settings_are_imported() -> None:
    service = service_of(imported(GATEWAY).endpoint, 0x1234)

    assert [service.segmentation_of(method) for method in service.methods] == [
        TpSegmentation(segment_bytes=1_392, separation_us=20),
        TpSegmentation(),
        None,
    ]
    assert not any(map(service.segmentation_of, service.events))


TP = {
    "service-to-client": [
        "0x8001",
        {"method": "0x8002", "max-segment-length": "512"},
        {"method": "0x8003", "max-segment-length": "1400", "separation-time": "10", "burst": "2"},
        {"method": "0x8004"},
        "0x800F",
        "many",
    ],
    "client-to-service": [{"method": "0x0001", "separation-time": "250"}],
    "both": [],
}


def tp_service(**keys: Any) -> dict[str, Any]:
    events = [{"event": hex(number)} for number in range(0x8001, 0x8006)]
    service = {"service": "1", "unreliable": "30509", "events": events, "someip-tp": TP} | keys
    return {"unicast": "10.0.0.1", "service-discovery": {"enable": "false"}, "services": [service]}


def test_segmented_sends_of_an_offered_service_are_events_and_responses() -> None:
    found = imported(tp_service())
    service = service_of(found.endpoint, 1)

    assert [service.segmentation_of(event) for event in service.events] == [
        TpSegmentation(),
        TpSegmentation(segment_bytes=512),
        TpSegmentation(separation_us=10),
        TpSegmentation(),
        None,
    ]
    assert service.methods == (1,)
    omissions = {line.split(": ")[0].removeprefix("services[0].someip-tp"): line for line in found.left_out}
    assert "always reassembled" in omissions[".client-to-service"]
    assert "multiple of 16" in omissions[".service-to-client[2].max-segment-length"]
    assert "not known" in omissions[".service-to-client[2].burst"]
    assert "'many': expected a number" in omissions[".service-to-client[5]"]
    assert "not known" in omissions[".both"]
    assert "0x800f is no message that the streamer sends" in omissions[""]


def test_segmented_sends_to_a_remote_service_are_requests() -> None:
    found = imported(tp_service(unicast="10.0.0.2"))
    service = service_of(found.endpoint, 1)

    assert service.methods == (MethodConfig(1, tp=TpSegmentation(separation_us=250)),)
    assert {event.tp for event in service.events} == {None}
    text = toml_text("chassis", "gateway", found.endpoint, "x.json")
    assert "methods = [{ id = 0x0001, tp = { segment_bytes = 1392, separation_us = 250 } }]" in text


def test_service_discovery_is_carried_over() -> None:
    sd = imported(GATEWAY).endpoint.sd
    assert not isinstance(sd, bool)
    assert (sd.multicast, sd.port, sd.interface) == ("224.244.224.245", 30490, "127.0.0.1")
    assert sd.networks == ("127.0.0.0/8",)
    assert sd.timings == SdTimings(
        initial_delay_min_ms=10,
        initial_delay_max_ms=100,
        repetitions_base_delay_ms=200,
        repetitions_max=3,
        cyclic_offer_delay_ms=2_000,
        ttl_offer_s=3,
        ttl_find_s=3,
        ttl_subscribe_s=3,
    )


def test_fields_and_the_multicast_groups_of_offered_services_are_imported() -> None:
    service = service_of(imported(GATEWAY).endpoint, 0x1234)
    assert [event.id for event in service.events if event.field] == [0x8778]
    assert service.eventgroups == (EventgroupConfig(0x4465, "224.225.226.233:32344", 8),)
    outside = service_of(imported(GATEWAY, bind="127.0.0.2").endpoint, 0x1234)
    assert [event.id for event in outside.events if event.field] == [0x8778]
    assert outside.eventgroups == ()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"ttl": "0"}, "service-discovery: its timings are left out: Expected `int` >= 1"),
        ({"cyclic_offer_delay": "3000", "ttl": "3"}, "its timings are left out: cyclic_offer_delay_ms: 3000"),
        ({"ttl": "x"}, "service-discovery.ttl: left out: 'x'"),
        (
            {"offer_debounce_time": "500"},
            "service-discovery.offer_debounce_time: Offers due together",
        ),
        ({"new": 1}, "service-discovery.new: not known"),
    ],
)
def test_an_omitted_service_discovery_setting_is_reported(change: dict[str, Any], line: str) -> None:
    found = imported({"unicast": "10.0.0.1", "service-discovery": change})
    assert any(line in each for each in found.left_out), found.left_out
    assert isinstance(found.endpoint.sd, SdConfig)


def test_an_eventgroup_without_threshold_has_no_multicast() -> None:
    groups = [("g", {"eventgroup": 1, "multicast": {"address": "224.0.0.1", "port": 30_500}})]
    omissions: list[tuple[str, str]] = []
    assert (
        list(
            multicast_eventgroups(groups, lambda value: int(str(value)), lambda *each: omissions.append(each))
        )
        == []
    )
    assert omissions == []


def test_an_invalid_netmask_is_left_out() -> None:
    found = imported({"unicast": "10.0.0.1", "netmask": "255.0.255.0", "service-discovery": {}})
    assert any(line.startswith("netmask: left out: '255.0.255.0'") for line in found.left_out)


@pytest.mark.parametrize("group_address", ["x", {"address": "10.0.0.1", "port": 1}, {"port": 1}])
def test_an_invalid_multicast_group_is_left_out(group_address: object) -> None:
    groups = [{"eventgroup": 1, "events": ["0x8001"], "threshold": "1", "multicast": group_address}]
    found = imported({"unicast": "10.0.0.1", "services": [{"service": 1, "eventgroups": groups}]})
    assert any(line.startswith("services[0].eventgroups[0].multicast: left out") for line in found.left_out)
    assert found.endpoint.services[0].eventgroups == ()


def test_without_service_discovery_services_of_the_network_need_a_place() -> None:
    found = imported(STATIC)
    assert found.endpoint.sd is False
    assert [each.service for each in found.endpoint.services] == [0x1234, 0x1235, 0x2001, 0x2002]
    assert any(line.startswith("clients[1]: left out") for line in found.left_out)


def test_the_file_of_another_host_is_seen_from_outside() -> None:
    endpoint = imported(STATIC, bind="127.0.0.2").endpoint
    assert endpoint.bind == "127.0.0.2"
    assert [(each.service, each.offered, each.remote) for each in endpoint.services] == [
        (0x1234, False, "127.0.0.1:30500"),
        (0x1235, False, "127.0.0.1:30501"),
        (0x2001, False, "127.0.0.9:40000"),
        (0x2002, False, None),
    ]


def test_reliable_events_use_tcp() -> None:
    endpoint = imported(GATEWAY).endpoint
    assert [(each.service, each.protocol, each.remote_tcp) for each in endpoint.services[:4]] == [
        (0x1234, "udp", None),
        (0x1235, "udp", None),
        (0x2001, "udp", None),
        (0x2002, "tcp", "127.0.0.9:40001"),
    ]
    assert endpoint.port_tcp == 30509
    assert not endpoint.tcp.cookies
    assert service_of(imported(STATIC, bind="127.0.0.2").endpoint, 0x1234).remote_tcp == "127.0.0.1:30509"


@pytest.mark.parametrize(
    ("unreliable", "reliable", "protocol"),
    [(5, None, "udp"), (5, 6, "udp"), (None, 6, "tcp"), (None, None, "udp")],
)
def test_a_service_with_both_ports_uses_udp(
    unreliable: int | None, reliable: int | None, protocol: str
) -> None:
    assert protocol_of(unreliable, reliable) == protocol


@pytest.mark.parametrize("port", ["0", "65535", {"port": "65535"}, 0xFFFF], ids=str)
def test_the_numbers_that_are_no_port_in_vsomeip_are_none(port: object) -> None:
    services = [{"service": 1, "unicast": "127.0.0.9", "unreliable": port, "reliable": "40001"}]
    (service,) = imported({"unicast": "127.0.0.1", "services": services}).endpoint.services
    assert (service.remote, service.remote_tcp, service.protocol) == (None, "127.0.0.9:40001", "tcp")


def test_one_port_for_tcp_and_cookies_for_all() -> None:
    reliable = [{"port": "7001", "enable-magic-cookies": "true"}, "7000"]
    services = [{"service": number, "reliable": each} for number, each in enumerate(reliable, start=1)]
    found = imported({"unicast": "127.0.0.1", "services": services})

    assert found.endpoint.port_tcp == 7000
    assert found.endpoint.tcp.cookies
    assert (
        "port_tcp: an endpoint has one TCP port, 7000: services offered at 7001 use it now" in found.left_out
    )


@pytest.mark.parametrize(
    ("ports", "is_reliable", "omission"),
    [
        ({"unreliable": 5}, "true", "no port for TCP: it is sent over UDP"),
        ({"reliable": 5}, "false", "no port for UDP: it is sent over TCP"),
    ],
)
def test_an_event_without_a_matching_port_uses_the_protocol_of_its_service(
    ports: dict[str, int], is_reliable: str, omission: str
) -> None:
    events = [{"event": "0x8001", "is_reliable": is_reliable}]
    found = imported({"unicast": "127.0.0.1", "services": [{"service": 1, "events": events} | ports]})

    assert found.endpoint.services[0].events == (EventConfig(0x8001),)
    assert any(
        line.startswith("services[0].events[0].is_reliable") and omission in line for line in found.left_out
    )


def test_values_missing_in_the_file_come_from_options() -> None:
    endpoint = imported(GATEWAY, authority="hpc.vin1", network="chassis", major=3).endpoint
    service = service_of(endpoint, 0x1235)
    assert (endpoint.authorities, service.major, service.provider) == (("chassis",), 3, "//hpc.vin1/1235/3/0")


def test_a_version_in_the_file_is_used() -> None:
    data = {
        "unicast": "127.0.0.1",
        "services": [{"service": 1, "instance": 1, "major": "2", "unreliable": 5}],
    }
    assert imported(data).endpoint.services[0].major == 2


def test_services_in_groups_are_services() -> None:
    data = {
        "unicast": "127.0.0.1",
        "servicegroups": [{"name": "g", "services": [{"service": "7", "unreliable": "9"}]}],
    }
    assert [each.service for each in imported(data).endpoint.services] == [7]


# --- omitted settings ------------------------------------------------------------------------------------------------


def test_every_omission_is_reported_with_its_place() -> None:
    places = [line.split(": ")[0] for line in imported(GATEWAY).left_out]

    assert sorted(set(places)) == sorted(
        {
            "device",
            "logging",
            "applications",
            "routing",
            "npdu-default-timings",
            "some-new-key",
            "port",
            "service-discovery.request_response_delay",
            "services[0].major",
            "services[0].methods",
            "services[0].someip-tp.client-to-service",
            "services[0].debounce-times",
            "services[0].events[0].update-cycle",
            "services[1].major",
            "services[1].methods",
            "services[2].major",
            "services[2].methods",
            "services[3].major",
            "services[3].methods",
            "clients[0].unreliable",
            "clients[1].events",
            "clients[1].major",
        }
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"services": [{"service": "0xFFFF", "unreliable": 5}]},
            "services[0]: left out: Expected `int` <= 65534",
        ),
        (
            {"services": [{"service": "x"}]},
            "services[0]: left out: 'x': expected a number, such as \"0x1234\"",
        ),
        ({"services": [{"instance": "1"}]}, "services[0]: left out: missing: expected a number"),
        ({"services": ["0x1234"]}, "services[0]: left out: '0x1234': expected an object"),
        ({"services": {"service": 1}}, "services: left out: an object: expected an array"),
        (
            {"services": [{"service": 1, "protocol": "hsfz"}]},
            "services[0]: left out: protocol 'hsfz': expected someip",
        ),
        (
            {"services": [{"service": 1, "unicast": 5}]},
            "services[0]: left out: unicast: 5: expected an address",
        ),
        ({"services": [{"service": 1, "color": "red"}]}, "services[0].color: not known"),
        (
            {"services": [{"service": 1, "events": [{"event": "0x0777"}]}]},
            "services[0]: left out: Expected `int` >= 32768",
        ),
        (
            {"services": [{"service": 1, "eventgroups": [{"eventgroup": 1, "events": "0x8001"}]}]},
            "services[0]: left out: '0x8001': expected an array",
        ),
        (
            {"services": [{"service": 1, "instance": 1}, {"service": 1, "instance": 2}]},
            "services[1]: left out: services: offered service 0x0001 version 0 (requests do not name an instance: give each a port)",
        ),
        (
            {"services": [], "clients": [{"service": None}]},
            "clients[0]: left out: missing: expected a number",
        ),
        ({"secur\nity\x1b": 1}, "secur?ity?: not known"),
    ],
)
def test_an_invalid_service_is_left_out_with_the_reason(change: dict[str, Any], line: str) -> None:
    found = imported({"unicast": "127.0.0.1", **change})
    assert any(line in each for each in found.left_out), found.left_out


def test_ipv6_addresses_are_carried_over() -> None:
    group = {"eventgroup": 1, "events": ["0x8001"], "threshold": "1"}
    group["multicast"] = {"address": "ff14::1", "port": "32344"}
    services = [
        {"service": 1, "unreliable": 5, "events": [{"event": "0x8001"}], "eventgroups": [group]},
        {"service": 2, "unreliable": 6, "unicast": "fd00::2"},
    ]
    discovery = {"enable": "true", "multicast": "ff14::4:c0"}
    found = imported({"unicast": "fd00::1", "service-discovery": discovery, "services": services}).endpoint
    assert (found.bind, found.services[1].remote_address) == ("fd00::1", ("fd00::2", 6))
    assert found.services[0].multicast_groups == (("ff14::1", 32344),)
    assert isinstance(found.sd, SdConfig)
    assert found.sd.own_address == ("fd00::1", 30490)


def test_an_invalid_service_does_not_affect_others() -> None:
    services = [{"service": number, "unreliable": 5} for number in (1, 0x10000, 2, "x", 3)]
    endpoint = imported({"unicast": "127.0.0.1", "services": services}).endpoint
    assert [each.service for each in endpoint.services] == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "unicast: missing: expected the address of the host"),
        ({"unicast": 5}, "unicast: 5: expected"),
        ({"unicast": "a.host"}, "bind: 'a.host': expected an IP address"),
        ({"unicast": "fe80::1"}, "bind: 'fe80::1': expected an address without a zone"),
        ({"unicast": "10.0.0.1", "service-discovery": {"port": "x"}}, "service-discovery.port: 'x'"),
    ],
)
def test_a_file_of_which_nothing_can_be_made_is_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        imported(data)


def test_a_place_that_cannot_be_read_is_a_value_error_of_its_own() -> None:
    with pytest.raises(InvalidVsomeipJson):
        imported({})


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [GATEWAY, STATIC], ids=["discovery", "static"])
@pytest.mark.parametrize("bind", [None, "127.0.0.2"])
def test_the_written_configuration_is_accepted_and_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: dict[str, Any], bind: str | None
) -> None:
    path = written(tmp_path, data)
    more = [] if bind is None else ["--bind", bind]

    assert main(["import", "vsomeip", str(path), *more]) == ExitCode.OK

    out, err = capsys.readouterr()
    config = tmp_path / "ours.toml"
    config.write_text(out, encoding="utf-8")
    report = check.check(config, offline=True)
    assert report.problems == ()
    assert report.stages == ("file", "routes")
    (endpoint,) = tomllib.loads(out)["endpoints"].values()
    expected = import_vsomeip(data, ImportOptions(bind=bind)).endpoint
    assert endpoint["port"] == expected.port
    assert [each["service"] for each in endpoint["services"]] == [each.service for each in expected.services]
    kinds = BuiltinTransports().ustreamer_transports()
    assert list(configuration.load(config, kinds, {}).endpoints.values()) == [expected]
    assert [line for line in err.splitlines() if line.startswith(f"{path}: ")] == [
        f"{path}: {line}" for line in import_vsomeip(data, ImportOptions(bind=bind)).left_out
    ]


def test_without_discovery_the_result_passes_the_whole_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {
        "unicast": "127.0.0.1",
        "services": [{"service": 1, "unicast": "127.0.0.9", "unreliable": "40000"}],
        "service-discovery": {"enable": "false"},
    }
    assert main(["import", "vsomeip", str(written(tmp_path, data))]) == ExitCode.OK
    config = tmp_path / "ours.toml"
    state = f'state_dir = "{tmp_path}/state"\n'
    config.write_text(state + capsys.readouterr().out, encoding="utf-8")
    problems = check.check(config, offline=False).problems
    assert [problem for problem in problems if "cannot bind" not in problem.text] == []


def test_the_text_names_its_origin_safely(tmp_path: Path) -> None:
    endpoint = imported(GATEWAY).endpoint
    text = toml_text("vehicle", "gateway", endpoint, 'x\n[endpoints.evil]\n"')
    assert list(tomllib.loads(text)["endpoints"]) == ["vehicle"]
    assert text.startswith("# Made of x?[endpoints.evil]?")


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (None, ExitCode.FAILURE, "No such file"),
        ("{", ExitCode.BAD_CONFIG, "not JSON"),
        ("[" * 100_000, ExitCode.BAD_CONFIG, "not JSON"),
        ("[]", ExitCode.BAD_CONFIG, "expected a JSON object"),
        ("{}", ExitCode.BAD_CONFIG, "unicast: missing"),
        (" " * (LIMIT_BYTES + 1), ExitCode.BAD_CONFIG, f"more than {LIMIT_BYTES} bytes"),
    ],
)
def test_a_file_that_is_none_ends_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, code: ExitCode, text: str
) -> None:
    path = tmp_path / "none.json" if content is None else written(tmp_path, content)
    assert main(["import", "vsomeip", str(path)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err


@pytest.mark.parametrize(
    "arguments", [["--endpoint", "a b"], ["--authority", "X"], ["--major", "255"], ["--major", "x"]]
)
def test_an_invalid_option_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import", "vsomeip", str(written(tmp_path, GATEWAY)), *arguments])
    assert ended.value.code == ExitCode.USAGE
    assert import_command.__doc__ is not None


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(UStatusError) as refused:
        import_file(tmp_path / "none.json", ImportOptions())
    assert refused.value.code is UCode.NOT_FOUND


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["0x1234", "1", "127.0.0.1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "service",
                    "instance",
                    "events",
                    "event",
                    "eventgroups",
                    "eventgroup",
                    "unreliable",
                    "port",
                    "unicast",
                    "major",
                    "someip-tp",
                    "debounce-times",
                    "services",
                    "clients",
                    "servicegroups",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(["services", "clients", "servicegroups", "service-discovery", "other"]),
        json_values,
        max_size=4,
    )
)
def test_any_json_is_imported_or_refused(data: dict[str, Any]) -> None:
    try:
        found = imported({"unicast": "127.0.0.1", **data})
    except ValueError:
        return
    tomllib.loads(toml_text("vehicle", "gateway", found.endpoint, "x"))
