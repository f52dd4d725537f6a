# SPDX-License-Identifier: Apache-2.0
"""Configuration mistakes that people make: each is refused or warned of on its line, and the advice mends it."""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.host.config.advice import apply
from ustreamer.host.config import config as configuration
from ustreamer.host.config.config import ConfigError, Problem, TomlDocument
from ustreamer.host.config.review import review
from ustreamer.host.runtime import plugins
from ustreamer.transport_port import TransportKind

VALID: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[observe]
listen = "127.0.0.1:9464"
top = 50

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1", "ivi.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:7457"]
connect = ["tcp/10.0.0.9:7447"]
scouting = false
retransmit_ms = 15000

[[endpoints.backbone.access]]
allow = true
source = "//ivi.vin1/10/1/FFFF"

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:7448"]
durable = true

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = 30500
clients = ["127.0.0.0/8"]
sd = { multicast = "224.244.224.245", interface = "127.0.0.1", port = 30490 }

[[endpoints.chassis.services]]
service = 0x1234
instance = 1
major = 1
events = [{ id = 0x8001, eventgroup = 1 }]
methods = [0x0001]
remote = "127.0.0.1:30501"

[[endpoints.chassis.services]]
service = 0x4001
major = 2
methods = [0x0002]
offered = true
provider = "//hpc.vin1/4001/1/0"

[[endpoints.chassis.access]]
allow = false
source = "//chassis/9999/1/FFFF"

[egress.default]
queue_messages = 10000
queue_bytes = 16_000_000
retry = { first_ms = 100, max_ms = 5000 }
max_age_ms = 30000

[egress.cloud]
spool_messages = 1000

[dead_letters]
messages = 1000

[plugins.usubscription]
topic_lifecycle = "off"

[[plugins.usubscription.permissions]]
topic = "//chassis/1234/1/FFFF"
level = 3

[[plugins.usubscription.callers]]
caller = "//hpc.vin1/FFFFFFFF/FF/FFFF"
level = 0

[plugins.throttle]
tolerance = 0.1
latest = ["//chassis/1234/1/8001"]

[plugins.recorder]
directory = "recordings"
max_bytes = 500_000_000

[plugins.payloads]
topics = [{ topic = "//chassis/1234/1/8001", type = "Wheel" }]

[plugins.payloads.types.Wheel]
kind = "struct"
members = [{ name = "speed", type = "f32" }]

[plugins.wamp]
listen = "ws://127.0.0.1:8080/ws"
max_sessions = 100
max_sessions_per_address = 50

[[plugins.wamp.users]]
authid = "dashboard"
ticket = "x"
"""


@cache
def installed() -> tuple[Mapping[str, TransportKind], Mapping[str, Any]]:
    classes, _ = plugins.load_plugin_classes()
    kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
    return kinds, {name: each.Config for name, each in classes.items()}


def found_in(text: str) -> tuple[Problem, ...]:
    """The problems of a text or, of a valid one, its warnings."""
    try:
        document = TomlDocument(Path("/etc/ustreamer/vehicle.toml"), text)
        config = configuration.check(document, *installed())
    except ConfigError as error:
        return error.problems
    return tuple(review(document, config, has_subscriptions="usubscription" in config.plugins))


class Mistake(NamedTuple):
    """`old` becomes `new`, where the sign ¶ marks the line of the mistake. `mends`: whether the advice does."""

    old: str
    new: str
    mends: bool = True

    def __str__(self) -> str:
        return " ".join(self.new.replace("¶", "").split())[:50] or f"no {self.old.split()[0]}"

    def made(self) -> tuple[str, int]:
        """The text with the mistake, and the number of its line."""
        assert VALID.count(self.old) >= 1, self.old
        assert self.new.count("¶") == 1, self.new
        text = VALID.replace(self.old, self.new, 1)
        return text.replace("¶", ""), text[: text.index("¶")].count("\n") + 1


EVENTS: Final = "events = [{ id = 0x8001, eventgroup = 1 }]"
SD: Final = 'sd = { multicast = "224.244.224.245", interface = "127.0.0.1", port = 30490 }'
SERVICE: Final = "[[endpoints.chassis.services]]\nservice = 0x1234\ninstance = 1\nmajor = 1\n"
BACKBONE: Final = '[endpoints.backbone]\ntransport = "zenoh"\nauthorities = ["hpc.vin1", "ivi.vin1"]\n'
CLOUD: Final = '[endpoints.cloud]\ntransport = "zenoh"\nauthorities = ["cloud"]\n'
CHASSIS: Final = '[endpoints.chassis]\ntransport = "someip"\nauthorities = ["chassis"]\n'
OFFERED: Final = (
    "[[endpoints.chassis.services]]\nservice = 0x4001\nmajor = 2\nmethods = [0x0002]\noffered = true\n"
)
PAYLOADS: Final = '[plugins.payloads]\ntopics = [{ topic = "//chassis/1234/1/8001", type = "Wheel" }]\n'
USUBSCRIPTION: Final = '[plugins.usubscription]\ntopic_lifecycle = "off"\n\n'
CALLER: Final = (
    'level = 3\n\n[[plugins.usubscription.callers]]\ncaller = "//hpc.vin1/FFFFFFFF/FF/FFFF"\nlevel = 0\n\n'
)
PERMISSION: Final = '[[plugins.usubscription.permissions]]\ntopic = "//chassis/1234/1/FFFF"\n'

SYNTAX: Final = [
    Mistake("scouting = false", "scouting = False¶"),
    Mistake("scouting = false", "scouting = no¶"),
    Mistake("service = 0x1234", "service = 0x12G4¶"),
    Mistake("service = 0x1234", 'service = "0x12G4"¶'),
    Mistake("port = 30500", "port = 30500\nreceive_buffer = 4MB¶"),
    Mistake("port = 30500", 'port = 30500\nreceive_buffer = "4 MB"¶'),
    Mistake("queue_messages = 10000", "queue_messages = 10k¶"),
    Mistake("queue_messages = 10000", "queue_messages = 10,000¶"),
    Mistake("tolerance = 0.1", "tolerance = 0,1¶"),
    Mistake("tolerance = 0.1", "tolerance = 0,125 # an eighth¶"),
    Mistake("scouting = false", "config = null¶"),
    Mistake("port = 30500", "port = 21 502¶"),
    Mistake("queue_messages = 10000", "queue_messages = 10'000 # messages¶"),
    Mistake(SD, "sd = none¶"),
    Mistake(SD, "sd = disabled¶"),
    Mistake(SD, 'sd = "off"¶'),
    Mistake("max_age_ms = 30000", "max_age_ms = none¶"),
    Mistake("tolerance = 0.1", "tolerance = 10%¶"),
    Mistake("tolerance = 0.1", "tolerance = 12.5 %¶"),
    Mistake("tolerance = 0.1", 'tolerance = "10%"¶'),
    Mistake("service = 0x1234", "service = 1234h¶"),
    Mistake("service = 0x1234", "service = $1234¶"),
    Mistake("service = 0x1234", 'service = "1234h"¶'),
    Mistake("id = 0x8001", "id = 8001h¶"),
    Mistake(
        "[plugins.throttle]", '[plugins.tracing]\ncollector = "grpc://127.0.0.1:4317"¶\n\n[plugins.throttle]'
    ),
    Mistake("retransmit_ms = 15000", "retransmit_ms = 15s¶"),
    Mistake("max_age_ms = 30000", "max_age_ms = 30s¶"),
    Mistake("max_age_ms = 30000", "max_age_ms = 0.5min # half a minute¶"),
    Mistake("queue_bytes = 16_000_000", "queue_bytes = 16MB¶"),
    Mistake("first_ms = 100,", "first_ms = 0.1s,¶"),
    Mistake('bind = "127.0.0.1"', "bind = “127.0.0.1”¶"),
    Mistake('["cloud"]', "[“cloud”]¶"),
    Mistake('authority = "hpc.vin1"', "authority = hpc.vin1¶"),
    Mistake('listen = ["tcp/127.0.0.1:7448"]', "listen = [tcp/127.0.0.1:7448]¶"),
    Mistake("port = 30500", "port = 30500,¶"),
    Mistake("port = 30500", "port = 30500;¶"),
    Mistake("port = 30500", "port: 30500¶"),
    Mistake("port = 30500", "port == 30500¶"),
    Mistake("service = 0x1234", "service = 0X1234¶"),
    Mistake("id = 0x8001", "id = 0X8001¶"),
    Mistake("methods = [0x0001]", "methods = [0X0001]¶"),
    Mistake("instance = 1\nmajor = 1", "instance = 1\nmajor = yes¶"),
    Mistake("port = 30500", "port = 30_500_¶"),
    Mistake("queue_bytes = 16_000_000", "queue_bytes = 24__150_000¶"),
    Mistake("port = 30500", "port = “30500”¶"),
    Mistake("port = 30500", "port: 0X7724¶"),
    Mistake("tolerance = 0.1", "tolerance = 0.¶"),
    Mistake("allow = true", "allow = TRUE¶"),
    Mistake("scouting = false", "scouting: no¶"),
    Mistake('authority = "hpc.vin1"', "authority: hpc.vin1¶"),
    Mistake('bind = "127.0.0.1"', "bind: 127.0.0.1¶"),
    Mistake('directory = "recordings"', "directory = off¶"),
    Mistake("first_ms = 100", "first_ms: 100¶"),
    Mistake("port = 30500", "port = 030500¶"),
    Mistake("port = 30500", "port = 30500\nport = 30502¶"),
    Mistake("port = 30500", "// the chassis¶\nport = 30500"),
    Mistake("tolerance = 0.1", "tolerance = .1¶"),
    Mistake("[endpoints.cloud]", "[endpoints.cloud¶"),
    Mistake('["tcp/127.0.0.1:7457"]', '["tcp/127.0.0.1:7457" "tcp/127.0.0.1:7449"]¶'),
    Mistake("first_ms = 100, max", "first_ms = 100 max¶"),
    Mistake("max_ms = 5000 }", "max_ms = 5000, }¶"),
    Mistake('directory = "recordings"', 'directory = "C:\\data"¶'),
    Mistake('mode = "peer"', 'mode = "peer¶'),
    Mistake("tolerance = 0.1", "tolerance = 0.1\ntolerance = 0.2¶"),
    Mistake("[plugins.throttle]", "[plugins.usubscription]¶\n[plugins.throttle]"),
]
NAMES: Final = [
    Mistake('mode = "peer"', 'mood = "peer"¶'),
    Mistake('listen = ["tcp/127.0.0.1:7448"]', 'listens = ["tcp/127.0.0.1:7448"]¶'),
    Mistake("port = 30500", "prot = 30500¶"),
    Mistake('bind = "127.0.0.1"', 'bnid = "127.0.0.1"¶'),
    Mistake("service = 0x1234", "servce = 0x1234¶"),
    Mistake("eventgroup = 1", "event_group = 1¶"),
    Mistake("queue_messages = 10000", "queue-messages = 10000¶"),
    Mistake("max_age_ms = 30000", "maxAgeMs = 30000¶"),
    Mistake("retry = { first_ms = 100, max_ms = 5000 }", "retry_first_ms = 100¶"),
    Mistake('topic_lifecycle = "off"', 'lifecycle = "off"¶'),
    Mistake("tolerance = 0.1", "tolerence = 0.1¶"),
    Mistake('state_dir = "state"', 'state_dir = "state"\ncolour = "red"¶'),
    Mistake('state_dir = "state"', 'statedir = "state"¶'),
    Mistake("[plugins.throttle]", "[plugins.trottle]¶"),
    Mistake("[plugins.recorder]", "[plugin.recorder]¶"),
    Mistake("[plugins.throttle]", "[throttle]¶"),
    Mistake("[plugins.throttle]", "[plugins.dashboard]¶\n[plugins.throttle]"),
    Mistake("[egress.default]", "[egress.defualt]¶"),
    Mistake("[egress.cloud]", "[egress.clud]¶"),
    Mistake(
        "[egress.cloud]", "[egress.satellite]\nmax_age_ms = 5\n[egress.cloud]".replace("]\nm", "]¶\nm", 1)
    ),
    Mistake("[dead_letters]", "[deadletters]¶"),
    Mistake("[observe]", "[observer]¶"),
    Mistake("[[endpoints.backbone.access]]", "[[endpoints.backbone.acess]]¶"),
    Mistake("[[endpoints.backbone.access]]", "[endpoints.backbone.access]¶"),
    Mistake("[plugins.throttle]", "[[plugins.throttle]]¶"),
    Mistake("directory =", "dir =¶"),
    Mistake('transport = "someip"', 'transprot = "someip"¶'),
    Mistake('transport = "someip"', 'transport = "some/ip"¶'),
    Mistake('transport = "someip"', 'transport = "dds"¶'),
    Mistake('kind = "struct"', 'kind = "strukt"¶'),
    Mistake('type = "f32"', 'type = "f33"¶'),
    Mistake('type = "Wheel"', 'type = "Weel"¶'),
]
MISSING: Final = [
    Mistake('authority = "hpc.vin1"\n', "¶"),
    Mistake("[endpoints.cloud]\n" 'transport = "zenoh"\n', "[endpoints.cloud]¶\n"),
    Mistake(CHASSIS, '[endpoints.chassis]¶\ntransport = "someip"\n', mends=False),  # others name the authority
    Mistake(CHASSIS + 'bind = "127.0.0.1"\n', CHASSIS.replace("]\n", "]¶\n", 1)),
    Mistake(CHASSIS + 'bind = "127.0.0.1"\nport = 30500\n', CHASSIS.replace("]\n", "]¶\n", 1) + 'bind = "127.0.0.1"\n'),
    Mistake(SERVICE, SERVICE.replace("]]", "]]¶").replace("major = 1\n", "")),
    Mistake(SERVICE, SERVICE.replace("]]", "]]¶").replace("service = 0x1234\n", "")),
    Mistake("{ id = 0x8001, eventgroup = 1 }", "{ eventgroup = 1 }¶"),
    Mistake(PERMISSION + "level = 3\n", PERMISSION.replace("]]", "]]¶")),
    Mistake('interface = "127.0.0.1", ', "¶"),
    Mistake('[plugins.wamp]\nlisten = "ws://127.0.0.1:8080/ws"\n', "[plugins.wamp]¶\n"),
    Mistake('[observe]\nlisten = "127.0.0.1:9464"\n', "[observe]¶\n"),
    Mistake(CLOUD + 'listen = ["tcp/127.0.0.1:7448"]\n', CLOUD.replace("]\n", "]¶\n", 1)),
    Mistake('bind = "127.0.0.1"', 'bind = "127.0.0.1"\ndead_letters = { messages = 5 }¶', mends=False),
    Mistake('authorities = ["chassis"]', "authorities = []¶"),
    Mistake(CHASSIS, '[endpoints.chassis]¶\nauthorities = ["chassis"]\n'),
    Mistake(CLOUD, '[endpoints.cloud]¶\nauthorities = ["cloud"]\n'),
    Mistake('transport = "someip"', 'transport = "zenoh"¶'),
    Mistake('transport = "someip"', 'transport = "wamp"¶', mends=False),
    Mistake(EVENTS, "events = [\n  { id = 0x8001 },\n  { id = 0x8001 },¶\n]", mends=False),
    Mistake('remote = "127.0.0.1:30501"', 'remote = "127.0.0.1:30500"¶', mends=False),
    Mistake('remote = "127.0.0.1:30501"', 'remote = "[::1]:30501"¶', mends=False),
    Mistake("scouting = false", "clients = []¶\nscouting = false"),
    Mistake("[egress.default]", "[egress]¶"),
    Mistake('["hpc.vin1", "ivi.vin1"]', '["hpc.vin1", "Ivi.vin1"]¶'),
    Mistake('["tcp/127.0.0.1:7448"]', "[]¶"),
]  # fmt: skip
WRONG_VALUES: Final = [
    Mistake("port = 30500", 'port = "30500"¶'),
    Mistake("port = 30500", "port = 30500.0¶"),
    Mistake("port = 30500", "port = 70000¶"),
    Mistake("port = 30500", "port = -1¶"),
    Mistake("port = 30500", "port = true¶"),
    Mistake("port = 30500", 'port = "any"¶'),
    Mistake("scouting = false", 'scouting = "false"¶'),
    Mistake("scouting = false", "scouting = 0¶"),
    Mistake("durable = true", 'durable = "yes"¶'),
    Mistake('["tcp/127.0.0.1:7448"]', '"tcp/127.0.0.1:7448"¶'),
    Mistake('["tcp/127.0.0.1:7457"]', "false¶"),
    Mistake('authorities = ["cloud"]', 'authorities = "cloud"¶'),
    Mistake("retransmit_ms = 15000", 'retransmit_ms = "15s"¶'),
    Mistake("retransmit_ms = 15000", "retransmit_ms = -5¶"),
    Mistake('mode = "peer"', 'mode = "pier"¶'),
    Mistake('mode = "peer"', "mode = false¶"),
    Mistake('mode = "peer"', 'mode = ["peer"]¶'),
    Mistake("eventgroup = 1", 'eventgroup = ["one"]¶'),
    Mistake("eventgroup = 1", 'eventgroup = "1"¶'),
    Mistake("eventgroup = 1", "eventgroup = []¶"),
    Mistake("service = 0x1234", "service = 0x1_2345¶"),
    Mistake("service = 0x1234", 'service = "0x1234"¶'),
    Mistake("id = 0x8001", "id = 0x0001¶"),
    Mistake("methods = [0x0001]", 'methods = ["0x0001"]¶'),
    Mistake("methods = [0x0001]", "methods = 1¶"),
    Mistake("top = 50", "top = 99999¶"),
    Mistake("queue_messages = 10000", "queue_messages = 0¶"),
    Mistake("max_age_ms = 30000", 'max_age_ms = "30 s"¶'),
    Mistake("max_age_ms = 30000", "max_age_ms = 30.5¶"),
    Mistake("queue_bytes = 16_000_000", 'queue_bytes = "16 MiB"¶'),
    Mistake("first_ms = 100", "first_ms = 9000¶"),
    Mistake("tolerance = 0.1", "tolerance = 5¶"),
    Mistake("tolerance = 0.1", 'tolerance = "0.1"¶'),
    Mistake("level = 3", "level = 9¶"),
    Mistake("max_bytes = 500_000_000", "max_bytes = 20_000_000¶"),
    Mistake("allow = true", 'allow = "true"¶'),
    Mistake('multicast = "224.244.224.245"', 'multicast = "10.0.0.1"¶'),
    Mistake('interface = "127.0.0.1"', 'interface = "eth0"¶'),
    Mistake('bind = "127.0.0.1"', "bind = false¶"),
    Mistake('bind = "127.0.0.1"', 'bind = "chassis.local"¶'),
    Mistake('clients = ["127.0.0.0/8"]', 'clients = ["127.0.0.1/8"]¶'),
    Mistake('remote = "127.0.0.1:30501"', 'remote = "127.0.0.1"¶'),
    Mistake('provider = "//hpc.vin1/4001/1/0"', 'provider = "hpc.vin1/4001/1/0"¶', mends=False),
    Mistake(OFFERED + 'provider = "//hpc.vin1/4001/1/0"\n', OFFERED.replace("]]", "]]¶")),
]  # fmt: skip
COMBINATIONS: Final = [
    Mistake('["cloud"]', '["cloud", "ivi.vin1"]¶'),
    Mistake('authority = "hpc.vin1"', 'authority = "HPC.vin1"¶'),
    Mistake('authority = "hpc.vin1"', 'authority = "*"¶'),
    Mistake('["chassis"]', '["up://chassis/"]¶'),
    Mistake('["tcp/127.0.0.1:7448"]', '["tcp/127.0.0.1:7457"]¶'),
    Mistake('["tcp/127.0.0.1:7448"]', '["ws/127.0.0.1:7457"]¶'),
    Mistake('"ws://127.0.0.1:8080/ws"', '"ws://localhost:9464/ws"¶'),
    Mistake("port = 30490 }", "port = 30500 }¶"),
    Mistake('["tcp/127.0.0.1:7448"]', '["127.0.0.1:7448"]¶'),
    Mistake('["tcp/127.0.0.1:7448"]', '["tcp/127.0.0.1"]¶'),
    Mistake('["tcp/127.0.0.1:7448"]', '[\n  "tcp/127.0.0.1:7448",\n  "tcp/127.0.0.1:77777",¶\n]'),
    Mistake('["tcp/10.0.0.9:7447"]', '["tpc/10.0.0.9:7447"]¶'),
    Mistake('["tcp/10.0.0.9:7447"]', '["tcp/10.0.0.9:0"]¶'),
    Mistake('["tcp/127.0.0.1:7448"]', '["tls/127.0.0.1:7448"]¶', mends=False),
    Mistake('["cloud"]\nlisten = ["tcp/127.0.0.1:7448"]', '["cloud"]\nscouting = false\nlisten = ["tcp/127.0.0.1:7448"]\nmode = "client"¶'),
    Mistake('state_dir = "state"', 'state_dir = "~/state"¶'),
    Mistake('state_dir = "state"', 'state_dir = "$HOME/state"¶'),
    Mistake('directory = "recordings"', 'directory = "${HOME}/recordings"¶'),
    Mistake('bind = "127.0.0.1"', 'bind = "255.255.255.255"¶', mends=False),
    Mistake('bind = "127.0.0.1"', 'bind = "224.0.0.1"¶', mends=False),
    Mistake('"ws://127.0.0.1:8080/ws"', f'"ws+unix:///{"x" * 107}"¶', mends=False),
    Mistake('["tcp/127.0.0.1:7448"]', f'["unixsock-stream//{"x" * 107}"]¶', mends=False),
    Mistake('["tcp/127.0.0.1:7448"]', '["tcp/127.0.0.1:7448?rel=9"]¶', mends=False),
    Mistake("scouting = false", 'config = "~/zenoh.json5"¶'),
    Mistake('directory = "recordings"', 'directory = "~/recordings"¶'),
    Mistake('listen = "127.0.0.1:9464"', 'listen = "0.0.0.0:9464"¶'),
    Mistake('listen = "127.0.0.1:9464"', 'listen = "localhost:9464"¶'),
    Mistake('"ws://127.0.0.1:8080/ws"', '"http://127.0.0.1:8080/ws"¶', mends=False),
    Mistake('"ws://127.0.0.1:8080/ws"', '"wss://127.0.0.1:8080/ws"¶', mends=False),
    Mistake("[egress.cloud]", "[egress.backbone]\nspool_messages = 5¶\n[egress.cloud]"),
    Mistake("[egress.cloud]", "[egress.chassis]\nsubscriber_messages = 99_000¶\n[egress.cloud]"),
    Mistake("[endpoints.cloud]", '[endpoints.inside]\ntransport = "local"\nnetwork = "a"\nauthorities = ["x"]\ndurable = true¶\n[endpoints.cloud]'),
    Mistake("[endpoints.cloud]", '[endpoints.default]¶\ntransport = "local"\nnetwork = "a"\nauthorities = ["x"]\n[endpoints.cloud]'),
    Mistake('"//ivi.vin1/10/1/FFFF"', '"//iv.vin1/10/1/FFFF"¶'),
    Mistake('"//ivi.vin1/10/1/FFFF"', '"//satellite/10/1/FFFF"¶'),
    Mistake("[egress.default]", '[[endpoints.cloud.access]]\nallow = true\nsource = "//hpc.vin1/0/FF/8000"¶\n\n[egress.default]'),
    Mistake("port = 30500", 'port = 30500\ndscp = "EF"¶'),
    Mistake("port = 30500", 'port = 30500\ndscp = "af41"¶'),
    Mistake("port = 30500", 'port = 30500\ndscp = "46"¶'),
    Mistake("port = 30500", 'port = 30500\ndscp = "fast"¶'),
    Mistake("port = 30500", "port = 30500\ndscp = 64¶"),
    Mistake("major = 1\nevents", 'major = 1\ndscp = "EF"¶\nevents'),
    Mistake(EVENTS, "events = { id = 0x8001, eventgroup = 1 }¶"),
    Mistake(EVENTS, "events = [0x8001]¶"),
    Mistake(EVENTS, "events = 0x8001¶"),
    Mistake(EVENTS, "events = { 0x8001 = { eventgroup = 1 } }¶"),
]  # fmt: skip
DOUBTFUL: Final = [
    Mistake('latest = ["//chassis/1234/1/8001"]', 'latest = ["//chasis/1234/1/8001"]¶'),
    Mistake('topic = "//chassis/1234/1/FFFF"', 'topic = "//chassi/1234/1/FFFF"¶'),
    Mistake('provider = "//hpc.vin1/4001/1/0"', 'provider = "//hcp.vin1/4001/1/0"¶'),
    Mistake(USUBSCRIPTION + PERMISSION + CALLER + "[plugins.throttle]", "[plugins.throttle]¶"),
    Mistake("retransmit_ms = 15000", "retransmit_ms = 5000¶"),
    Mistake("retransmit_ms = 15000", "retransmit_ms = 0\nretransmit_bytes = 5¶"),
    Mistake('["tcp/127.0.0.1:7448"]', '["tcp/0.0.0.0:7448"]¶', mends=False),
    Mistake("queue_messages = 10000", "queue_messages = 1_000_000¶"),
    Mistake("queue_messages = 10000\nqueue_bytes = 16_000_000", "queue_bytes = 150¶"),
    Mistake("port = 30500", "port = 0¶"),
    Mistake('clients = ["127.0.0.0/8"]', 'clients = ["127.0.0.0/8", "::1/128"]¶'),
    Mistake('latest = ["//chassis/1234/1/8001"]', 'latest = ["//chassis/1234/1/8001", "//chassis/1234/1/1"]¶'),
    Mistake('topic_lifecycle = "off"', 'topic_lifecycle = "off"\ndispatchers = ["//cloud/1/1/0"]¶'),
    Mistake("max_sessions = 100\n", 'max_sessions = 100\ntls = { certificate = "a.pem", key = "b.pem" }¶\n'),
    Mistake("[egress.cloud]", "[egress.chassis]¶\n[egress.cloud]"),
    Mistake("port = 30500", "port = 30500\nport_tcp = 30501¶"),
    Mistake("port = 30500", "port = 30500\ntcp = { connections = 5, connections_per_host = 5 }¶"),
    Mistake(PAYLOADS, "[plugins.payloads]¶\n", mends=False),
    Mistake("port = 30490 }", "port = 30490, limits = { peer_subscriptions = 5000 } }¶"),
    Mistake("max_sessions_per_address = 50", "max_sessions_per_address = 500¶"),
    Mistake("max_bytes = 500_000_000", "max_bytes = 500_000_000\npayload_bytes = 9¶"),
    Mistake("tolerance = 0.1\nlatest =", 'mode = "latest"\nlatest =¶'),
    Mistake("[plugins.wamp]", '[plugins.payloads.types.Door]¶\nkind = "enum"\nof = "u8"\nvalues = { open = 1 }\n\n[plugins.wamp]'),
    Mistake('listen = "ws://127.0.0.1:8080/ws"', 'listen = "ws://0.0.0.0:8080/ws"¶\nanonymous = true', mends=False),
]  # fmt: skip
MISTAKES: Final = [*SYNTAX, *NAMES, *MISSING, *WRONG_VALUES, *COMBINATIONS, *DOUBTFUL]


def test_the_configuration_without_a_mistake_has_no_problem_and_no_warning() -> None:
    assert found_in(VALID) == ()


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_found_on_its_line_and_the_advice_mends_it(mistake: Mistake) -> None:
    text, line = mistake.made()
    found = found_in(text)
    assert line in {each.line for each in found}, found
    [problem, *_] = [each for each in found if each.line == line]
    assert 1 <= problem.column <= len(text.split("\n")[line - 1]) + 1
    mended = apply(text, problem)
    left = found if mended is None else found_in(mended)
    assert (not left) is mistake.mends, (str(problem), mended and changed(text, mended), left)


@pytest.mark.parametrize("ends", [("\r", "\r"), ("\n", "\r"), ("\r\n", "\r")], ids=repr)
def test_line_ends_of_an_old_mac_are_named_and_mended(ends: tuple[str, str]) -> None:
    lines = VALID.splitlines()
    text = "".join(line + ends[number % 2] for number, line in enumerate(lines))
    [problem] = found_in(text)
    assert problem.suggestion == "save the file with the line ends of Unix (LF) in place of CR"
    mended = apply(text, problem)
    assert mended is not None
    assert found_in(mended) == ()


ONE_SERVICE: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[plugins.usubscription]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = 30500
sd = false
"""


@pytest.mark.parametrize(
    ("services", "advice"),
    [
        (
            '[endpoints.chassis.services]\nservice = 1\nmajor = 1\nremote = "127.0.0.1:30501"\n',
            "write [[endpoints.chassis.services]], with two brackets on each side",
        ),
        (
            (
                '[[endpoints.chassis.services]]\nservice = 1\nmajor = 1\nremote = "127.0.0.1:30501"\n'
                "[endpoints.chassis.services.events]\nid = 0x8001\n"
            ),
            "write [[endpoints.chassis.services.events]], with two brackets on each side",
        ),
        (
            'services = [{ service = 1, major = 1, remote = "127.0.0.1:30501", events = { id = 0x8001 } }]\n',
            "write events = [{ id = 0x8001 }]",
        ),
        (
            'services = { service = 1, major = 1, remote = "127.0.0.1:30501" }\n',
            'write services = [{ service = 1, major = 1, remote = "127.0.0.1:30501" }]',
        ),
        (
            'services = { service = 1, major = 1, remote = "127.0.0.1:30501", methods = [1, 2, 3], events = [{ id = 0x8001 }] }\n',
            "put it into [{ ... }]: services = [{ ... }]",
        ),
    ],
)
def test_the_advice_about_a_table_of_services_or_events_mends_it(services: str, advice: str) -> None:
    text = ONE_SERVICE + services
    [problem] = found_in(text)
    assert problem.suggestion == advice
    mended = apply(text, problem)
    assert mended is not None
    assert found_in(mended) == ()


@pytest.mark.parametrize(("value", "words"), [("EF", "EF is 46: write dscp = 46"), ("no", "0 to 63")])
def test_a_dscp_that_is_no_number_names_the_numbers(value: str, words: str) -> None:
    [problem] = found_in(f'{ONE_SERVICE}dscp = "{value}"\n')
    assert words in str(problem)


def changed(before: str, after: str) -> list[str]:
    """The lines of `after` that `before` has not."""
    return [line for line in after.split("\n") if line not in before.split("\n")]


@pytest.mark.parametrize(
    ("own", "authorities", "peers", "found"),
    [
        ("hpc.vin1", ["hpc.vin1"], '["hpc.vin1"]', ""),
        ("hpc.vin1", ["*"], "true", ""),
        ("g1.vin1", ["hpc.vin1"], "true", "core.usubscription of 'g1.vin1' cannot be called"),
        (
            "g1.vin1",
            ["hpc.vin1", "g1.vin1", "g2.vin1"],
            '["g1.vin1", "g2.vin1"]',
            "'g2.vin1' does not follow",
        ),
    ],
)
def test_an_outside_usubscription_that_cannot_be_followed_is_warned_of(
    own: str, authorities: list[str], peers: str, found: str
) -> None:
    text = (
        f'authority = "{own}"\nstate_dir = "state"\n[endpoints.backbone]\ntransport = "zenoh"\n'
        f"authorities = {json.dumps(authorities)}\npeers = {peers}\n"
        'listen = ["tcp/127.0.0.1:7457"]\nscouting = false\n'
    )
    warnings = found_in(text + "[plugins.usubscription]\nexternal = true\n")
    assert len(warnings) == bool(found)
    assert all(found in each.text for each in warnings)
    assert found_in(text + "[plugins.usubscription]\n") == ()


def test_advice_about_a_file_without_an_endpoint_has_the_header_of_one() -> None:
    [problem] = found_in('authority = "hpc.vin1"\n')
    assert problem.suggestion == "add [endpoints.<name>] with transport and authorities"


def test_a_file_without_a_transport_is_not_led_to_one_that_a_plugin_brings() -> None:
    [problem] = found_in('authority = "hpc.vin1"\n[endpoints.cloud]\nauthorities = ["cloud"]\n')
    assert problem.suggestion == 'add transport = "zenoh"'


def test_there_are_120_mistakes_and_the_advice_mends_at_least_110() -> None:
    assert len(MISTAKES) >= 120
    assert len(set(MISTAKES)) == len(MISTAKES)
    assert sum(mistake.mends for mistake in MISTAKES) >= 110


def test_several_mistakes_at_once_cause_problems_and_no_other_error() -> None:
    rng = random.Random(21)
    for _ in range(60):
        text = VALID
        for mistake in rng.sample(MISTAKES, 3):
            text = text.replace(mistake.old, mistake.new.replace("¶", ""), 1)
        assert found_in(text), text


VALUES: Final = (
    "0", "-1", "true", "false", '"true"', "30s", '"30s"', '"5"', "2.0", "[]", "[1]", '["one"]', '[["x"]]', "{}", '"x"',
    "“x”", "1979-05-27", "nan", "None", "0x10", '"0x10"', '" "', '""', '"' + "9" * 5_000 + '"',
)  # fmt: skip


def test_advice_mends_its_problem_whatever_the_value_of_a_key_is() -> None:
    """And after the advice of all problems in turn, three in four files have no problem."""
    rng = random.Random(22)
    lines = VALID.splitlines()
    keys = [index for index, line in enumerate(lines) if " = " in line]
    mended = tried = 0
    for _ in range(150):
        index, value = rng.choice(keys), rng.choice(VALUES)
        changed_line = f"{lines[index].partition(' = ')[0]} = {value}"
        text = "\n".join([*lines[:index], changed_line, *lines[index + 1 :]]) + "\n"
        found = found_in(text)
        if not found:
            continue  # the value is right
        tried += 1
        for _ in range(8):
            steps = ((each, apply(text, each)) for each in found)
            problem, after = next((step for step in steps if step[1] is not None), (None, None))
            if problem is None or after is None:
                break
            text, found = after, found_in(after)
            assert (problem.path, problem.text) not in {(each.path, each.text) for each in found}, (
                problem,
                text,
            )
        mended += not found
    assert mended >= 0.75 * tried


@pytest.mark.parametrize(("address", "found"), [("127.0.0.1", 1), ("127.0.0.2", 0)])
def test_two_endpoints_do_not_share_the_address_of_service_discovery(address: str, found: int) -> None:
    """The kernel would give each unicast to one of them only."""
    text = 'authority = "hpc"\nstate_dir = "state"\n[plugins.usubscription]\n'
    for name, host, port in (("one", "127.0.0.1", 30_500), ("two", address, 30_501)):
        text += (
            f'[endpoints.{name}]\ntransport = "someip"\nauthorities = ["{name}"]\nbind = "{host}"\nport = {port}\n'
            f'sd = {{ multicast = "224.244.224.245", interface = "{host}" }}\n'
        )
    problems = found_in(text)
    assert len(problems) == found
    assert all("bound by endpoints.one.sd.port" in str(each) for each in problems)
