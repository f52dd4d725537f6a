# SPDX-License-Identifier: Apache-2.0
"""The section `[endpoints.<name>]` of a SOME/IP network: accepted values, defaults, and error texts."""

from ipaddress import IPv4Network
from typing import Any

import msgspec
import pytest

from ustreamer.transports.someip.config import (
    EventConfig,
    MethodConfig,
    ReceiverConfig,
    SomeipEndpoint,
    services_restart_reason,
)
from ustreamer.transports.someip.protocol.addresses import TcpAddress, parse_address
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.transports.someip.sd.config import SdConfig

REMOTE = {"service": 0x1234, "major": 1, "remote": "127.0.0.1:30501"}
OFFERED = {"service": 0x1234, "major": 1, "offered": True, "provider": "//hpc.vin1/1234/1/0"}


def endpoint(**keys: Any) -> SomeipEndpoint:
    base = {"transport": "someip", "authorities": ["chassis"], "bind": "127.0.0.1", "port": 30500}
    return msgspec.convert(base | keys, SomeipEndpoint)


# [utest->RPC-659]
def test_the_section_of_the_architecture_page_is_valid() -> None:
    config = endpoint(
        sd={"multicast": "224.244.224.245", "port": 30490, "interface": "127.0.0.1"},
        services=[
            {
                "service": 0x1234,
                "instance": 1,
                "major": 1,
                "events": [{"id": 0x8001, "eventgroup": 1}],
                "methods": [0x0001],
                "remote": "127.0.0.1:30501",
            },
            {"service": 0x1235, "major": 1, "offered": True, "provider": "//hpc.vin1/1235/1/0"},
        ],
    )

    assert config.sd == SdConfig("224.244.224.245", "127.0.0.1", 30490)
    first, second = config.services
    assert (first.events, first.methods) == ((EventConfig(0x8001, 1),), (1,))
    assert first.remote_address == ("127.0.0.1", 30501)
    assert second.provider_uuri is not None
    assert str(second.provider_uuri) == "up://hpc.vin1/1235/1/0"


def test_without_optional_keys_discovery_is_off_and_every_limit_has_a_default() -> None:
    config = endpoint()

    assert config.sd is False
    assert (config.services, config.clients) == ((), None)
    assert (config.client_version, config.request_ttl_ms, config.max_pending) == (1, 1000, 4096)
    assert config.receive_buffer == 4_194_304


@pytest.mark.parametrize(("instance", "ue_id"), [(1, 0x1234), (2, 0x2_1234), (0xFFFE, 0xFFFE_1234)], ids=hex)
def test_instance_1_is_omitted_from_the_ue_id(instance: int, ue_id: int) -> None:
    (service,) = endpoint(services=[REMOTE | {"instance": instance}]).services

    assert service.ue_id == ue_id


def test_the_remote_of_an_offered_service_is_its_first_receiver() -> None:
    further = [{"address": "127.0.0.1:30502", "max_frequency": 40.0}]
    (service,) = endpoint(services=[OFFERED | {"remote": "127.0.0.1:30501", "receivers": further}]).services

    assert service.static_receivers == (
        ReceiverConfig("127.0.0.1:30501"),
        ReceiverConfig("127.0.0.1:30502", 40.0),
    )
    assert [each.period_ns for each in service.static_receivers] == [0, 25_000_000]


def test_the_remote_of_a_service_that_is_not_offered_receives_nothing() -> None:
    assert endpoint(services=[REMOTE]).services[0].static_receivers == ()


# --- TCP --------------------------------------------------------------------------------------------------------------


# [utest->RPC-32]
def test_udp_is_the_default_protocol() -> None:
    config = endpoint(services=[REMOTE | {"events": [{"id": 0x8001}], "methods": [1, {"id": 2}]}])

    assert not config.services[0].uses_protocol("tcp")
    assert not config.listens_over_tcp
    assert (config.tcp_port, config.tcp) == (30500, TcpConfig())


# [utest->RPC-32]
def test_an_event_or_method_may_override_the_protocol_of_its_service() -> None:
    service = REMOTE | {
        "protocol": "tcp",
        "events": [{"id": 0x8001}, {"id": 0x8002, "protocol": "udp"}],
        "methods": [1, {"id": 2, "protocol": "udp"}, {"id": 3, "protocol": "tcp"}],
    }
    (found,) = endpoint(services=[service]).services

    assert [found.protocol_of(each) for each in found.events] == ["tcp", "udp"]
    assert found.method_ids == (1, 2, 3)
    assert found.tcp_methods == {1, 3}
    assert found.tcp_address == TcpAddress("127.0.0.1", 30501)


def test_a_service_over_tcp_alone_needs_no_udp_address() -> None:
    service = {"service": 1, "major": 1, "protocol": "tcp", "methods": [1], "remote_tcp": "10.0.0.2:30510"}
    (found,) = endpoint(services=[service]).services

    assert found.tcp_address == TcpAddress("10.0.0.2", 30510)
    assert found.remote_address is None


def test_the_endpoint_listens_over_tcp_only_for_services_offered_over_tcp() -> None:
    tcp = {"protocol": "tcp", "methods": [1]}

    assert endpoint(services=[OFFERED | tcp]).listens_over_tcp
    assert not endpoint(services=[OFFERED, REMOTE | tcp]).listens_over_tcp
    assert endpoint(port_tcp=30510, services=[OFFERED | tcp]).tcp_port == 30510


# --- segments ---------------------------------------------------------------------------------------------------------


SLOW = {"segment_bytes": 512, "separation_us": 2_000}


# [utest->TP-788]
@pytest.mark.parametrize(
    ("own", "of_service", "found"),
    [
        (None, False, None),
        (None, True, TpSegmentation()),
        (None, SLOW, TpSegmentation(segment_bytes=512, separation_us=2_000)),
        (True, False, TpSegmentation()),
        (True, SLOW, TpSegmentation(segment_bytes=512, separation_us=2_000)),
        (False, SLOW, None),
        ({"segment_bytes": 16}, SLOW, TpSegmentation(segment_bytes=16)),
    ],
)
def test_segmentation_is_set_by_the_event_or_method_or_else_by_its_service(
    own: object, of_service: object, found: TpSegmentation | None
) -> None:
    keys = {} if own is None else {"tp": own}
    (service,) = endpoint(
        services=[
            OFFERED | {"tp": of_service, "events": [{"id": 0x8001} | keys], "methods": [{"id": 1} | keys]}
        ]
    ).services

    assert service.segmentation_of(service.events[0]) == found
    assert service.segmentation_of(service.methods[0]) == found


def test_a_method_is_an_id_or_a_table_and_over_tcp_nothing_is_segmented() -> None:
    (service,) = endpoint(
        services=[REMOTE | {"tp": True, "methods": [1, {"id": 2}, {"id": 3, "protocol": "tcp"}]}]
    ).services

    assert service.methods == (1, MethodConfig(2), MethodConfig(3, protocol="tcp"))
    assert [service.segmentation_of(each) for each in service.methods] == [
        TpSegmentation(),
        TpSegmentation(),
        None,
    ]


def test_the_limits_of_segments_are_configurable() -> None:
    assert endpoint().tp == TpLimits()
    assert endpoint(tp={"message_bytes": 4_096, "peer_bytes": 8_192}).tp.peer_bytes == 8_192


# [utest->TP-773]
@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (
            {"tp": {"message_bytes": 300_000}},
            "tp.peer_bytes: 262144, expected at least message_bytes, 300000",
        ),
        ({"tp": {"peer_bytes": 800_000}}, "tp.total_bytes: 786432, expected at least peer_bytes, 800000"),
        ({"services": [OFFERED | {"tp": {"segment_bytes": 1_400}}]}, "multiple of 16"),
        (
            {"services": [REMOTE | {"events": [{"id": 0x8001, "tp": True}]}]},
            r"events\[0\].tp: only for a service with offered = true",
        ),
        (
            {"services": [REMOTE | {"events": [{"id": 0x8001, "max_silence_ms": 500}]}]},
            r"events\[0\].max_silence_ms: only for a service of the network that service discovery finds",
        ),
        ({"services": [REMOTE | {"methods": [7, {"id": 7}]}]}, r"methods\[1\]: method 0x0007 is there twice"),
        (
            {"services": [REMOTE | {"protocol": "tcp", "methods": [1, {"id": 7, "tp": True}]}]},
            r"methods\[1\].tp: segments are for UDP",
        ),
    ],
)
def test_contradictory_limits_of_segments_are_refused(keys: dict[str, Any], error: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=error):
        endpoint(**keys)


# --- instances --------------------------------------------------------------------------------------------------------

SECOND = OFFERED | {"instance": 2, "provider": "//hpc.vin1/9078/1/0", "remote": None, "receivers": []}


# [utest->RPC-1079, RPC-445, RPC-967]
def test_a_second_offered_instance_needs_a_port_of_its_own() -> None:
    found = endpoint(services=[OFFERED, SECOND | {"port": 40_001, "port_tcp": 40_002}])
    assert [(each.port, each.own_tcp_port) for each in found.services] == [(None, None), (40_001, 40_002)]
    with pytest.raises(msgspec.ValidationError, match="requests do not name an instance: give each a port"):
        endpoint(services=[OFFERED, SECOND])


# [utest->RPC-733]
def test_an_offered_service_with_a_port_binds_it_and_its_field_needs_discovery() -> None:
    offered = {"service": 0x1234, "major": 1, "offered": True, "remote": "127.0.0.2:30501"}
    events = [{"id": 0x8001, "field": True}, {"id": 0x8002, "protocol": "tcp"}]
    services = [{**offered, "provider": "//hpc/1234/1/0", "port": 30600, "events": events}]
    config = endpoint(bind="127.0.0.1", port=30500, services=services)
    bound = {(each.key, each.protocol, each.port) for each in config.bound_addresses()}
    assert {("services[0].port", "udp", 30600), ("services[0].port", "tcp", 30600)} <= bound
    assert [each.key for each in config.warnings()] == ["services[0].events[0].field"]


def test_e2e_keys_without_effect_are_warned_of() -> None:
    checked = {"profile": "P01", "data_id": 7, "max_delta_counter": 14}
    network = {"service": 0x1234, "major": 1, "remote": "127.0.0.2:30501"}
    offered = network | {"offered": True, "provider": "//hpc/1234/1/0"}
    services = [
        network | {"events": [{"id": 0x8001, "e2e": checked}]},
        offered | {"events": [{"id": 0x8001, "e2e": checked | {"on_error": "mark"}}]},
    ]
    assert [each.key for each in endpoint(services=services).warnings()] == [
        "services[0].events[0].e2e.max_delta_counter",
        "services[1].events[0].e2e.on_error",
        "services[1].events[0].e2e.max_delta_counter",
    ]
    services = [network | {"events": [{"id": 0x8001, "e2e": checked | {"max_delta_counter": 13}}]}]
    assert endpoint(services=services).warnings() == []


@pytest.mark.parametrize(
    ("services", "error"),
    [
        ([REMOTE | {"port": 40_001}], "port: only for a service with offered = true"),
        ([SECOND | {"port_tcp": 40_001}], "port_tcp: only with a port of the service"),
        ([SECOND | {"port": 30_000}], "30000 is the endpoint's own; leave it out"),
        (
            [OFFERED | {"protocol": "tcp", "methods": [1]}, SECOND | {"port": 40_001, "port_tcp": 30_000}],
            "30000 is the endpoint's own",
        ),
        (
            [
                OFFERED | {"port": 40_001, "port_tcp": 1},
                SECOND | {"service": 9, "port": 40_001, "port_tcp": 2},
            ],
            "expected one number for all services at port 40001",
        ),
        (
            [OFFERED | {"port": 40_001}, SECOND | {"instance": 1, "port": 40_002}],
            "instance 1 is there twice",
        ),
    ],
)
def test_ports_that_contradict_each_other_are_refused(services: list[dict[str, Any]], error: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=error):
        endpoint(port=30_000, services=services)


# --- services that a reload adds ---------------------------------------------------------------------------------------

FOUND = {"service": 9, "major": 1}
SD = {"multicast": "224.244.224.245", "interface": "127.0.0.1"}


@pytest.mark.parametrize(
    ("before", "after", "sd", "reason"),
    [
        ([FOUND], [FOUND, OFFERED, FOUND | {"service": 8}], {}, ""),
        ([FOUND], [FOUND], {"dynamic_services": True}, ""),
        ([FOUND], [OFFERED], {}, "the removal of services[0] (0x0009) (further services go behind"),
        ([FOUND], [], {}, "the removal of services[0] (0x0009) (further"),
        ([FOUND], [OFFERED, FOUND], {}, "another place of services[0] (0x0009) (further"),
        (
            [OFFERED, FOUND],
            [OFFERED, FOUND | {"dscp": 8}],
            {},
            "the change of services[1] (0x0009) in dscp (further",
        ),
        ([], [FOUND], {"dynamic_services": True}, "services[0] (0x0009), a service with dynamic_services,"),
        ([], [REMOTE], {}, ""),
        ([], [OFFERED | {"port": 40_001}], {}, "a service with a port of its own,"),
        ([], [FOUND | {"accept_relayed": True}], {}, "a service with accept_relayed,"),
        ([], [OFFERED | {"protocol": "tcp", "methods": [1]}], {}, "the first offered service over TCP"),
    ],
)
def test_a_reload_adds_services(
    before: list[dict[str, Any]], after: list[dict[str, Any]], sd: dict[str, Any], reason: str
) -> None:
    old, new = (endpoint(services=services, sd=SD | sd) for services in (before, after))
    found = services_restart_reason(old, new)
    assert reason in found
    assert bool(reason) is bool(found)


def test_a_reload_adds_services_without_service_discovery() -> None:
    def reason(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
        return services_restart_reason(endpoint(services=before), endpoint(services=after))

    second = REMOTE | {"service": 9}
    over_tcp = second | {"protocol": "tcp", "methods": [1]}
    assert reason([REMOTE], [REMOTE, second]) == ""
    assert reason([REMOTE], [REMOTE, OFFERED]) == ""
    assert reason([REMOTE], [REMOTE, over_tcp]) == "services[1] (0x0009), the first service over TCP,"
    assert reason([over_tcp], [over_tcp, over_tcp | {"service": 10}]) == ""
    multicast = {
        "events": [{"id": 0x8001, "eventgroup": 1}],
        "eventgroups": [{"id": 1, "multicast": "239.0.0.1:30490"}],
    }
    assert (
        reason([REMOTE], [REMOTE, second | multicast])
        == "services[1] (0x0009), a service with a multicast group,"
    )


# --- accepted clients -------------------------------------------------------------------------------------------------

CLIENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a loopback address admits all of loopback": ({}, ["127.0.0.0/8"]),
    "any other address admits itself": ({"bind": "10.0.0.1"}, ["10.0.0.1/32"]),
    "remotes and receivers are admitted": (
        {
            "bind": "10.0.0.1",
            "services": [
                REMOTE | {"remote": "10.0.0.3:30501"},
                OFFERED | {"remote": "10.0.0.2:1", "receivers": [{"address": "10.0.0.4:30501"}]},
            ],
        },
        ["10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32"],
    ),
    "a list replaces the default": ({"clients": ["10.1.0.0/16", "10.0.0.9"]}, ["10.1.0.0/16", "10.0.0.9/32"]),
    "an empty list accepts no client": ({"clients": []}, []),
}


@pytest.mark.parametrize(("keys", "networks"), CLIENTS.values(), ids=CLIENTS)
def test_requests_are_accepted_from_configured_networks(keys: dict[str, Any], networks: list[str]) -> None:
    assert endpoint(**keys).client_networks() == tuple(map(IPv4Network, networks))


# --- refusals ---------------------------------------------------------------------------------------------------------


def _services(*services: dict[str, Any]) -> dict[str, Any]:
    return {"services": list(services)}


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a key that does not exist": ({"multicast": "224.0.0.1"}, ["unknown field `multicast`"]),
    "a misspelt key of a service": (_services(REMOTE | {"event": []}), ["`event`", "services[0]"]),
    "no concrete authority": ({"authorities": ["*"]}, ["authorities", "chassis"]),
    "no authority": ({"authorities": []}, ["authorities", "chassis"]),
    "discovery without its settings": ({"sd": True}, ["sd: true", "multicast"]),
    "a host name to bind": ({"bind": "localhost"}, ["bind", "'localhost'", "IP address"]),
    "an IPv6 address of a link": ({"bind": "fe80::1"}, ["bind", "fe80::1", "without a zone"]),
    "a bind of another IP version than a remote": (
        {"bind": "::1"} | _services(REMOTE),
        ["services[0]", "IP version of bind, ::1"],
    ),
    "a group of another IP version than the interface": (
        {"bind": "::1", "sd": {"multicast": "224.244.224.245", "interface": "::1"}},
        ["sd", "multicast", "IP version"],
    ),
    "service discovery of another IP version than bind": (
        {"bind": "::1", "sd": {"multicast": "224.244.224.245", "interface": "127.0.0.1"}},
        ["sd.interface", "IP version of bind"],
    ),
    "a port above 65535": ({"port": 65_536}, ["port", "65535"]),
    "a network with host bits": ({"clients": ["10.0.0.1/24"]}, ["clients[0]", "host bits", "10.0.0.0/24"]),
    "a client that is no address": ({"clients": ["10.0.0.0/8", "gw"]}, ["clients[1]", "'gw'"]),
    "client version of a wildcard": ({"client_version": 255}, ["client_version", "254"]),
    "a request ttl of nothing": ({"request_ttl_ms": 0}, ["request_ttl_ms", "1"]),
    "more open calls than sessions": ({"max_pending": 65_535}, ["max_pending", "65534"]),
    "a service id of 0": (_services(REMOTE | {"service": 0}), ["services[0].service", "1"]),
    "the service id of discovery": (
        _services(REMOTE | {"service": 0xFFFF}),
        ["services[0].service", "65534"],
    ),
    "the wildcard instance": (_services(REMOTE | {"instance": 0xFFFF}), ["services[0].instance", "65534"]),
    "the wildcard version": (_services(REMOTE | {"major": 255}), ["services[0].major", "254"]),
    "an event without the event bit": (
        _services(REMOTE | {"events": [{"id": 1}]}),
        ["events[0].id", "32768"],
    ),
    "an event id of all ones": (_services(REMOTE | {"events": [{"id": 0xFFFF}]}), ["events[0].id", "65534"]),
    "a method with the event bit": (_services(REMOTE | {"methods": [0x8001]}), ["methods[0]", "32767"]),
    "a method of 0": (_services(REMOTE | {"methods": [0]}), ["methods[0]", "1"]),
    "an event twice": (
        _services(REMOTE | {"events": [{"id": 0x8001}, {"id": 0x8001, "eventgroup": 2}]}),
        ["services[0]", "events", "0x8001", "twice"],
    ),
    "an event group of an event twice": (
        _services(REMOTE | {"events": [{"id": 0x8001, "eventgroup": [2, 2]}]}),
        ["services[0].events[0]", "eventgroup", "0x0002", "twice"],
    ),
    "no event group": (
        _services(REMOTE | {"events": [{"id": 0x8001, "eventgroup": []}]}),
        ["services[0].events[0].eventgroup", "1"],
    ),
    "a method twice": (
        _services(REMOTE | {"methods": [1, 1]}),
        ["services[0]", "methods", "0x0001", "twice"],
    ),
    "a service without an address": (
        _services({"service": 1, "major": 1, "methods": [1]}),
        ["services[0].remote", "missing", "10.0.0.2:30501"],
    ),
    "no address for UDP messages": (
        _services({"service": 1, "major": 1, "methods": [1], "remote_tcp": "10.0.0.2:1"}),
        ["services[0].remote", "missing"],
    ),
    "a protocol that does not exist": (
        _services(REMOTE | {"protocol": "sctp"}),
        ["services[0].protocol", "sctp"],
    ),
    "a place over TCP of what is offered": (
        _services(OFFERED | {"remote_tcp": "10.0.0.2:1"}),
        ["services[0]", "remote_tcp", "port_tcp"],
    ),
    "ourselves over TCP": (
        _services(REMOTE | {"remote_tcp": "127.0.0.1:30500"}),
        ["services[0]", "127.0.0.1:30500", "own bind and port_tcp"],
    ),
    "two receivers over TCP that are indistinguishable": (
        _services(
            OFFERED
            | {
                "protocol": "tcp",
                "events": [{"id": 0x8001}],
                "remote": "10.0.0.2:1",
                "receivers": [{"address": "10.0.0.2:2"}],
            }
        ),
        ["services[0]", "receivers", "10.0.0.2", "twice"],
    ),
    "a bound of nothing": ({"tcp": {"connections": 0}}, ["tcp.connections", "1"]),
    "an address without a port": (
        _services(REMOTE | {"remote": "10.0.0.2"}),
        ["services[0]", "remote", "port"],
    ),
    "a host name": (_services(REMOTE | {"remote": "ecu:30501"}), ["services[0]", "remote", "'ecu:30501'"]),
    "port 0": (_services(REMOTE | {"remote": "10.0.0.2:0"}), ["services[0]", "remote", "'10.0.0.2:0'"]),
    "a multicast remote": (_services(REMOTE | {"remote": "224.0.0.1:1"}), ["remote", "one host"]),
    "an unspecified remote": (_services(REMOTE | {"remote": "0.0.0.0:1"}), ["remote", "one host"]),
    "a broadcast remote": (_services(REMOTE | {"remote": "255.255.255.255:1"}), ["remote", "one host"]),
    "ourselves as the remote": (
        _services(REMOTE | {"remote": "127.0.0.1:30500"}),
        ["services[0]", "127.0.0.1:30500", "own bind and port"],
    ),
    "ourselves as a receiver": (
        _services(OFFERED | {"receivers": [{"address": "127.0.0.1:30500"}]}),
        ["services[0]", "127.0.0.1:30500", "own bind and port"],
    ),
    "a provider of what is not offered": (
        _services(REMOTE | {"provider": "//hpc.vin1/1234/1/0"}),
        ["services[0]", "provider", "offered = true"],
    ),
    "receivers of what is not offered": (
        _services(REMOTE | {"receivers": [{"address": "10.0.0.3:1"}]}),
        ["services[0]", "receivers", "offered = true"],
    ),
    "an offer without a provider": (
        _services({"service": 1, "major": 1, "offered": True}),
        ["services[0]", "provider: missing", "//hpc.vin1/1234/1/0"],
    ),
    "a provider that is no UUri": (_services(OFFERED | {"provider": "hpc"}), ["provider", "'hpc'"]),
    "a method as the provider": (
        _services(OFFERED | {"provider": "//hpc.vin1/1234/1/1"}),
        ["provider", "resource 0"],
    ),
    "a wildcard as the provider": (
        _services(OFFERED | {"provider": "//hpc.vin1/1234/FF/0"}),
        ["provider", "no wildcard"],
    ),
    "a provider behind the endpoint itself": (
        _services(OFFERED | {"provider": "//chassis/1234/1/0"}),
        ["services[0].provider", "behind this endpoint itself"],
    ),
    "a frequency of 0": (
        _services(OFFERED | {"receivers": [{"address": "10.0.0.3:1", "max_frequency": 0}]}),
        ["receivers[0]", "max_frequency 0.0 Hz"],
    ),
    "a receiver that is no address": (
        _services(OFFERED | {"receivers": [{"address": "10.0.0.3"}]}),
        ["receivers[0]", "address", "'10.0.0.3'"],
    ),
    "a receiver twice": (
        _services(OFFERED | {"remote": "10.0.0.3:1", "receivers": [{"address": "10.0.0.3:01"}]}),
        ["services[0]", "receivers", "10.0.0.3:01", "twice"],
    ),
    "a service twice": (
        _services(REMOTE, REMOTE | {"remote": "127.0.0.2:1"}),
        ["services", "0x1234 version 1 instance 1", "twice"],
    ),
    "two instances whose events look the same": (
        _services(
            REMOTE | {"events": [{"id": 0x8001}]},
            REMOTE | {"instance": 2, "events": [{"id": 0x8001}]},
        ),
        ["services", "event 0x8001", "127.0.0.1:30501", "do not name an instance"],
    ),
    "two instances offered at one address": (
        _services(OFFERED, OFFERED | {"instance": 2, "provider": "//hpc.vin1/21234/1/0"}),
        ["services", "0x1234 version 1", "do not name an instance"],
    ),
    "a provider of two services": (
        _services(OFFERED, OFFERED | {"service": 0x1235, "provider": "up://hpc.vin1/1234/1/0"}),
        ["services", "provider up://hpc.vin1/1234/1/0", "twice"],
    ),
}


# [utest->RPC-627, RPC-579, RPC-60]
@pytest.mark.parametrize(("keys", "expected"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_section_is_refused_with_a_reason(keys: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        endpoint(**keys)

    missing = [text for text in expected if text not in str(refused.value)]
    assert missing == [], str(refused.value)


ACCEPTED: dict[str, dict[str, Any]] = {
    "two instances at two addresses": _services(
        REMOTE | {"events": [{"id": 0x8001}]},
        REMOTE | {"instance": 2, "remote": "127.0.0.2:30501", "events": [{"id": 0x8001}]},
    ),
    "two versions at one address": _services(
        REMOTE | {"events": [{"id": 0x8001}]}, REMOTE | {"major": 2, "events": [{"id": 0x8001}]}
    ),
    "one service of the network's and one of ours": _services(REMOTE, OFFERED),
    "with discovery a service needs no address": {
        "sd": {"multicast": "224.244.224.245", "interface": "127.0.0.1"},
        "services": [{"service": 1, "major": 1}],
    },
    "a provider of the streamer's own authority": _services(OFFERED | {"provider": "/1234/1/0"}),
}


@pytest.mark.parametrize("keys", ACCEPTED.values(), ids=ACCEPTED)
def test_a_valid_section_is_accepted(keys: dict[str, Any]) -> None:
    assert len(endpoint(**keys).services) == len(keys["services"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "1",
        "10.0.0.2",
        "10.0.0.2:",
        ":1",
        "10.0.0.2:65536",
        "10.0.0.2:-1",
        "10.0.0.2:+1",
        "010.0.0.2:1",
        "::1:1",
        "[::1]",
        "[10.0.0.2]:1",
    ],
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_address(text)

    assert repr(text) in str(refused.value)
    assert "10.0.0.2:30501" in str(refused.value)


@pytest.mark.parametrize("text", ["[fe80::2]:1", "[fd00::2%eth0]:1", "[ff14::1]:1", "[::]:1"])
def test_an_ipv6_address_is_that_of_one_host_without_a_zone(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_address(text)
    assert parse_address("[FD00:0::2]:1") == ("fd00::2", 1)
