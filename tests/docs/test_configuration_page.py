# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md explains every existing key, and no other."""

import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from ustreamer_mqtt.config import MqttEndpoint, MqttTls
from ustreamer_payloads import config
from ustreamer_payloads.plugin import PayloadsPlugin, TopicConfig
from ustreamer_recorder.plugin import RecorderPlugin
from ustreamer_throttle.plugin import ThrottlePlugin
from ustreamer_tracing.config import TracingConfig
from ustreamer_usubscription.plugin import UsubscriptionPlugin
from ustreamer_wamp.config import Anonymous, Tls
from ustreamer_wamp.connections.outbox import OutboxLimits
from ustreamer_wamp.plugin import WampPlugin
from ustreamer_wamp.users import User

from ustreamer.core.routing.access import AccessRule
from ustreamer.host.config import config as host
from ustreamer.transport_port import EndpointConfig
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.transports.someip import config as someip
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.transports.someip.sd.config import DynamicServicesConfig, SdConfig, SdLimits, SdTimings
from ustreamer.transports.zenoh.config import ZenohEndpoint

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
BASE = set(EndpointConfig.__struct_fields__)
HANDLED_BY_THE_READER = {"base"}  # where the file is, not a key in it


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def documented(title: str) -> set[str]:
    """Names in backquotes in the first column, and those written as nested keys in the others."""
    return set(re.findall(r"`(\w+)`", section(title)))


def first_column(title: str) -> set[str]:
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def keys(*structs: type[msgspec.Struct]) -> set[str]:
    """As `fields`, by their names in the file."""
    return {name for struct in structs for name in struct.__struct_encode_fields__}


def fields(*structs: type[msgspec.Struct]) -> set[str]:
    return {name for struct in structs for name in struct.__struct_fields__}


KINDS: tuple[type[msgspec.Struct], ...] = get_args(config.Shape)

SECTIONS = [
    ("The file", fields(host.StreamerConfig) - HANDLED_BY_THE_READER, set()),
    ("Every endpoint", BASE | fields(AccessRule), set()),
    ("Zenoh endpoint", fields(ZenohEndpoint) - BASE, set()),
    (
        "SOME/IP endpoint",
        fields(
            someip.SomeipEndpoint,
            someip.ServiceConfig,
            TcpConfig,
            SdConfig,
            SdTimings,
            SdLimits,
            DynamicServicesConfig,
            E2eConfig,
        )
        - BASE,
        fields(
            someip.EventConfig,
            someip.MethodConfig,
            someip.ReceiverConfig,
            someip.EventgroupConfig,
            TpSegmentation,
            TpLimits,
        ),
    ),
    ("MQTT endpoint", fields(MqttEndpoint) - BASE, fields(MqttTls)),
    ("Local endpoint", fields(LocalEndpoint) - BASE, set()),
    ("Egress", fields(host.EgressConfig), fields(host.RetryConfig)),
    ("Dead letters", fields(host.DeadLettersConfig), set()),
    ("Observe", fields(host.ObserveConfig), set()),
    ("Plugin usubscription", fields(UsubscriptionPlugin.Config), set()),
    ("Plugin throttle", fields(ThrottlePlugin.Config), set()),
    ("Plugin recorder", fields(RecorderPlugin.Config), set()),
    (
        "Plugin payloads",
        keys(PayloadsPlugin.Config, TopicConfig),
        keys(*KINDS, config.MemberShape, config.TaggedShape, config.VariantShape, config.BitShape),
    ),
    ("Plugin tracing", fields(TracingConfig), set()),
    ("Plugin wamp", fields(WampPlugin.Config), fields(User, Tls, Anonymous, OutboxLimits)),
]


@pytest.mark.parametrize(("title", "keys", "nested"), SECTIONS, ids=[title for title, _, _ in SECTIONS])
def test_every_key_of_a_section_is_explained_and_no_other(
    title: str, keys: set[str], nested: set[str]
) -> None:
    assert first_column(title) == keys
    assert nested <= documented(title)


def test_every_section_of_the_page_is_checked() -> None:
    titles = [title for title, _, _ in SECTIONS]
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == [
        "The smallest file",
        *titles,
        "Changing a running streamer",
    ]


def test_the_defaults_of_segments_are_those_of_the_code() -> None:
    text = section("SOME/IP endpoint")
    for field in (*msgspec.structs.fields(TpSegmentation), *msgspec.structs.fields(TpLimits)):
        assert re.search(rf"`{field.name}`\s\({field.default}[,)]", text), field.name


def test_the_defaults_of_the_page_are_those_of_the_code() -> None:
    for title, struct in (
        ("Every endpoint", EndpointConfig),
        ("Zenoh endpoint", ZenohEndpoint),
        ("SOME/IP endpoint", someip.SomeipEndpoint),
        ("MQTT endpoint", MqttEndpoint),
        ("Dead letters", host.DeadLettersConfig),
        ("Observe", host.ObserveConfig),
        ("Plugin usubscription", UsubscriptionPlugin.Config),
        ("Plugin throttle", ThrottlePlugin.Config),
        ("Plugin payloads", PayloadsPlugin.Config),
        ("Plugin tracing", TracingConfig),
        ("Plugin wamp", WampPlugin.Config),
    ):
        inherited = () if struct is EndpointConfig else EndpointConfig.__struct_fields__
        for field in msgspec.structs.fields(struct):
            if field.name in inherited:
                continue
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                row = re.search(rf"^\| `{field.name}` \| ([^|]*) \|", section(title), re.MULTILINE)
                assert row, f"{title}: {field.name}"
                assert row.group(1).strip("` ") == str(field.default), f"{title}: {field.name}"


def test_every_kind_of_payload_type_has_a_row_with_its_keys_and_their_defaults() -> None:
    rows = dict(re.findall(r'^\| `"(\w+)"` \| ([^|]*) \|', section("Plugin payloads"), re.MULTILINE))
    notified = {kind: dict(re.findall(r"`(\w+)`(?: \(`?([^)`]*)`?\))?", keys)) for kind, keys in rows.items()}
    assert notified == {
        str(kind.__struct_config__.tag): {
            each.encode_name: ""
            if each.default in {msgspec.UNSET, msgspec.NODEFAULT}
            else json.dumps(each.default)
            for each in msgspec.structs.fields(kind)
        }
        for kind in KINDS
    }
