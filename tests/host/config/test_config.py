# SPDX-License-Identifier: Apache-2.0
"""A valid configuration, and fifty invalid ones: each is refused on its line, at its key, with a suggestion."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from tests.host.config.advice import apply
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.host.config import config as configuration
from ustreamer.host.config.config import (
    OWN_PLUGINS,
    ConfigError,
    DeadLettersConfig,
    StreamerConfig,
    TomlDocument,
    load,
    read,
)
from ustreamer.transport_port import EndpointConfig, EndpointContext, EndpointTransport, TransportKind
from ustreamer.transports import BuiltinTransports
from ustreamer.uprotocol.uuri import UUri

# --- transports and plugins with only a section ----------------------------------------------------------------------


class Zenoh(EndpointConfig, frozen=True, kw_only=True):
    config: str | None = None
    mode: Literal["peer", "client", "router"] = "peer"
    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()


class Event(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[int, Meta(ge=0x8000, le=0xFFFE)]
    eventgroup: int = 1


class Service(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    service: Annotated[int, Meta(ge=1, le=0xFFFE)]
    instance: int = 1
    major: Annotated[int, Meta(ge=0, le=254)]
    events: tuple[Event, ...] = ()
    methods: tuple[int, ...] = ()
    remote: str | None = None
    offered: bool = False

    def __post_init__(self) -> None:
        if self.remote is not None and ":" not in self.remote:
            raise ValueError(
                f"remote: {self.remote!r}: expected an address and a port, such as 10.0.0.2:30501"
            )


class Discovery(Struct, frozen=True, forbid_unknown_fields=True):
    multicast: str
    interface: str
    port: Annotated[int, Meta(ge=1, le=65535)] = 30490


class Someip(EndpointConfig, frozen=True, kw_only=True):
    bind: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    sd: Discovery | bool = True
    services: tuple[Service, ...] = ()


class Usubscription(Struct, frozen=True, forbid_unknown_fields=True):
    topic_lifecycle: Literal["off", "track", "enforce"] = "off"


class Throttle(Struct, frozen=True, forbid_unknown_fields=True):
    tolerance: Annotated[float, Meta(ge=0, le=0.5)] = 0.1


class Recorder(Struct, frozen=True, forbid_unknown_fields=True):
    directory: Path


class Wamp(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str


def never_made(config: Any, context: EndpointContext) -> EndpointTransport:
    raise AssertionError("a configuration is checked without making anything")


TRANSPORTS = {
    "local": TransportKind(EndpointConfig, never_made, outlives_streamer=False),
    "zenoh": TransportKind(Zenoh, never_made),
    "someip": TransportKind(Someip, never_made, has_usubscription=False),
}
PLUGINS: Mapping[str, type[Struct]] = {
    "usubscription": Usubscription,
    "throttle": Throttle,
    "recorder": Recorder,
    "wamp": Wamp,
}

SAMPLE = """\
authority = "hpc.vin1"                       # this streamer's authority
state_dir = "/var/lib/ustreamer"             # LMDB and spool live here

[endpoints.backbone]                         # any name
transport = "zenoh"
authorities = ["hpc.vin1", "cloud"]          # who lives behind it; "*" = everyone not named elsewhere
config = "zenoh.json5"                       # any Zenoh configuration file, or inline:
mode = "peer"
listen = ["tcp/127.0.0.1:7447"]
connect = []

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"                           # our unicast address and port
port = 30500
sd = { multicast = "224.244.224.245", port = 30490, interface = "127.0.0.1" }
[[endpoints.chassis.services]]               # what exists on that network, and what we offer on it
service = 0x1234
instance = 1
major = 1
events = [ { id = 0x8001, eventgroup = 1 } ]
methods = [ 0x0001 ]
remote = "127.0.0.1:30501"                   # static endpoint, where sd is off

[egress.default]                             # or [egress.<endpoint>]
queue_messages = 10000
queue_bytes = 16_000_000
retry = { first_ms = 100, max_ms = 5000 }
max_age_ms = 30000                           # bound for messages without ttl

[plugins.usubscription]
topic_lifecycle = "off"                      # off | track | enforce
[plugins.throttle]
tolerance = 0.1
[plugins.recorder]
directory = "/var/lib/ustreamer/recordings"
[plugins.wamp]
listen = "ws://127.0.0.1:8080/ws"
"""


def checked(text: str, file: str = "vehicle.toml") -> StreamerConfig:
    return configuration.check(TomlDocument(Path(file), text), TRANSPORTS, PLUGINS)


def problems(text: str) -> tuple[configuration.Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        checked(text)
    return caught.value.problems


def problems_if_any(text: str) -> tuple[configuration.Problem, ...]:
    try:
        checked(text)
    except ConfigError as error:
        return error.problems
    return ()


def edited(*edits: tuple[str, str]) -> str:
    """The sample with each edit made once."""
    text = SAMPLE
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


# --- a valid configuration -------------------------------------------------------------------------------------------


def test_the_sample_loads() -> None:
    config = checked(SAMPLE)
    assert config.authority == "hpc.vin1"
    assert config.state_dir == Path("/var/lib/ustreamer")
    assert list(config.endpoints) == ["backbone", "chassis"]
    backbone, chassis = config.endpoints.values()
    assert isinstance(backbone, Zenoh)
    assert isinstance(chassis, Someip)
    assert (backbone.config, backbone.listen) == ("zenoh.json5", ("tcp/127.0.0.1:7447",))
    assert chassis.sd == Discovery("224.244.224.245", "127.0.0.1", 30490)
    assert chassis.services[0].events == (Event(0x8001, 1),)
    assert list(config.plugins) == ["usubscription", "throttle", "recorder", "wamp"]
    assert config.plugins["throttle"] == Throttle(0.1)


def test_the_sample_loads_from_a_file_with_the_built_in_transports(tmp_path: Path) -> None:
    file = tmp_path / "vehicle.toml"
    file.write_text(SAMPLE, encoding="utf-8")
    kinds = BuiltinTransports().ustreamer_transports()
    config = configuration.load(file, kinds, PLUGINS)
    assert {name: type(section) for name, section in config.endpoints.items()} == {
        "backbone": kinds["zenoh"].config,
        "chassis": kinds["someip"].config,
    }
    assert configuration.served_authorities(config, kinds) == (
        "hpc.vin1",
    )  # with sd, the ECUs have a uSubscription


def test_the_own_usubscription_serves_ecus_without_service_discovery(tmp_path: Path) -> None:
    file = tmp_path / "vehicle.toml"
    sd = 'sd = { multicast = "224.244.224.245", port = 30490, interface = "127.0.0.1" }'
    file.write_text(edited((sd, "sd = false")), encoding="utf-8")
    kinds = BuiltinTransports().ustreamer_transports()
    config = configuration.load(file, kinds, PLUGINS)
    assert configuration.served_authorities(config, kinds) == ("hpc.vin1", "chassis")


def test_the_smallest_configuration_has_the_defaults_of_the_core() -> None:
    config = checked('authority = "a"\n[endpoints.e]\ntransport = "local"\nauthorities = ["*"]')
    assert config.state_dir == Path("/var/lib/ustreamer")
    assert config.plugins == {}
    assert config.limits("e") == config.limits("self") == EgressLimits()


def test_relative_paths_start_from_the_directory_of_the_file(tmp_path: Path) -> None:
    text = edited(('"/var/lib/ustreamer"', '"state"'), ('"/var/lib/ustreamer/recordings"', '"../recordings"'))
    config = checked(text, str(tmp_path / "vehicle.toml"))
    assert config.base == tmp_path
    assert config.state_dir == tmp_path / "state"
    assert config.plugins["recorder"] == Recorder(tmp_path / "../recordings")


def test_an_endpoint_overrides_the_default_limits_key_by_key() -> None:
    config = checked(
        edited(
            ("retry = { first_ms = 100, max_ms = 5000 }", "retry = { first_ms = 200 }"),
            ("queue_bytes = 16_000_000", ""),
            (
                "[plugins.usubscription]",
                "[egress.chassis]\nretry.max_ms = 300\nqueue_bytes = 5\n[plugins.usubscription]",
            ),
        )
    )
    assert config.limits("backbone") == EgressLimits(10_000, 16_000_000, 200, 5_000, 30_000)
    assert config.limits("chassis") == EgressLimits(10_000, 5, 200, 300, 30_000)
    assert config.limits("self") == config.limits("backbone")


def test_one_subscriber_is_limited_to_half_of_its_endpoint_by_default() -> None:
    def of_a_subscriber(*edits: tuple[str, str]) -> tuple[int, int]:
        return checked(edited(*edits)).limits("chassis").per_subscriber

    section = "[plugins.usubscription]"
    assert of_a_subscriber() == (5_000, 8_000_000)
    assert of_a_subscriber((section, "[egress.chassis]\nqueue_messages = 7\n" + section)) == (3, 8_000_000)
    own = "[egress.chassis]\nsubscriber_messages = 9\nsubscriber_bytes = 99\n"
    assert of_a_subscriber((section, own + section)) == (9, 99)
    default = ("queue_messages = 10000", "queue_messages = 10000\nsubscriber_messages = 10000")
    assert of_a_subscriber(default) == (10_000, 8_000_000)
    assert of_a_subscriber(default, (section, own + section)) == (9, 99)


@pytest.mark.parametrize(
    ("durable", "section", "path", "fix"),
    [
        (False, "subscriber_messages = 10001", "egress.chassis.subscriber_messages", "choose at most 10000"),
        (False, "subscriber_bytes = 16000001", "egress.chassis.subscriber_bytes", "choose at most 16000000"),
        (
            False,
            "queue_messages = 99",
            "egress.chassis.queue_messages",
            "add subscriber_messages = 99 or less",
        ),
        (True, "subscriber_messages = 100001", "egress.chassis.subscriber_messages", "choose at most 100000"),
        (True, "subscriber_messages = 100000", None, None),
        (True, "queue_messages = 99", None, None),
    ],
)
def test_one_subscriber_may_not_have_more_than_its_endpoint(
    durable: bool, section: str, path: str | None, fix: str | None
) -> None:
    text = edited(
        ("queue_messages = 10000", "queue_messages = 10000\nsubscriber_messages = 200"),
        ("[plugins.usubscription]", f"[egress.chassis]\n{section}\n[plugins.usubscription]"),
        *([("port = 30500", "port = 30500\ndurable = true")] if durable else []),
    )
    found = [(problem.path, problem.suggestion) for problem in problems_if_any(text)]
    assert found == ([(path, fix)] if path else [])


def test_a_durable_endpoint_holds_messages_without_ttl_for_a_day_by_default() -> None:
    def max_age_ms(*edits: tuple[str, str]) -> int:
        durable = ("port = 30500", "port = 30500\ndurable = true")
        return checked(edited(durable, *edits)).limits("chassis").max_age_ms

    omitted = ("max_age_ms = 30000", "")
    chassis = ("[plugins.usubscription]", "[egress.chassis]\nmax_age_ms = 5\n[plugins.usubscription]")
    assert max_age_ms() == 30_000
    assert max_age_ms(omitted) == 86_400_000
    assert max_age_ms(omitted, chassis) == 5
    assert checked(edited(omitted)).limits("chassis").max_age_ms == 30_000


def test_the_first_pause_may_be_the_longest() -> None:
    config = checked(edited(("first_ms = 100", "first_ms = 5000")))
    assert config.limits("chassis").retry_first_ms == config.limits("chassis").retry_max_ms == 5000


def test_a_problem_of_the_default_limits_is_not_repeated_per_endpoint() -> None:
    chassis = "[egress.chassis]\nqueue_bytes = 1\n[plugins.usubscription]"
    text = edited(("first_ms = 100", "first_ms = 9000"), ("[plugins.usubscription]", chassis))
    assert [problem.path for problem in problems(text)] == ["egress.default.retry.first_ms"]


def test_an_override_that_does_not_fit_the_default_is_refused_where_it_is() -> None:
    chassis = "[egress.chassis]\nretry.max_ms = 50\n[plugins.usubscription]"
    (problem,) = problems(edited(("[plugins.usubscription]", chassis)))
    assert (problem.line, problem.path) == (33, "egress.chassis.retry.max_ms")
    assert problem.suggestion == "choose at least 100"


def test_the_file_limits_the_number_of_dead_letters() -> None:
    smallest = 'authority = "a"\n[endpoints.e]\ntransport = "local"\nauthorities = ["*"]\n'
    assert checked(smallest).dead_letters == DeadLettersConfig(10_000, 64_000_000, 1_000_000)
    config = checked(smallest + "[dead_letters]\nmessages = 5\n")
    assert config.dead_letters == DeadLettersConfig(5, 64_000_000, 1_000_000)
    (problem,) = problems(smallest + "[dead_letters]\nmesages = 5\n")
    assert (problem.line, problem.path) == (6, "dead_letters.mesages")
    assert problem.suggestion == "did you mean 'messages'?"


@pytest.mark.parametrize(("text", "line"), [('authority = "a"\n\n[endpoints]', 3), ('authority = "a"\n', 1)])
def test_a_streamer_has_an_endpoint(text: str, line: int) -> None:
    (problem,) = problems(text)
    assert (problem.line, problem.path) == (line, "endpoints")


def test_authorities_are_printed_unless_wildcard() -> None:
    text = edited(('authorities = ["chassis"]', 'authorities = ["ecu2", "*", "ecu1"]'))
    assert configuration.configured_authorities(checked(text)) == ("hpc.vin1", "cloud", "ecu1", "ecu2")


def test_the_streamer_serves_itself_and_authorities_without_usubscription() -> None:
    chassis = '[endpoints.chassis]\ntransport = "someip"\nauthorities = ["chassis"]'
    text = edited((chassis, chassis.replace('["chassis"]', '["ecu2", "*", "ecu1"]')))
    assert configuration.served_authorities(checked(text), TRANSPORTS) == ("hpc.vin1", "ecu1", "ecu2")


def test_the_own_authority_may_be_behind_no_endpoint() -> None:
    assert checked(edited(('["hpc.vin1", "cloud"]', '["cloud"]'))).authority == "hpc.vin1"


ACCESS = """
[[endpoints.chassis.access]]
allow = true
source = "//chassis/1234/1/FFFF"
type = "publish"
[[endpoints.chassis.access]]
allow = false
"""


def with_access(*edits: tuple[str, str]) -> str:
    text = ACCESS
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return SAMPLE + text


def test_access_rules_are_read_in_their_order_and_an_endpoint_without_has_none() -> None:
    endpoints = checked(with_access()).endpoints
    assert endpoints["chassis"].access == (
        AccessRule(allow=True, source="//chassis/1234/1/FFFF", type="publish"),
        AccessRule(allow=False),
    )
    assert endpoints["backbone"].access == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("allow = true\n", "", "endpoints.chassis.access[0].allow: is missing; add allow = true"),
        ("allow = true", "alow = true", "endpoints.chassis.access[0].alow: unknown key"),
        ("allow = true", 'allow = "true"', "endpoints.chassis.access[0].allow: expected true or false"),
        ('"publish"', '"event"', "endpoints.chassis.access[0].type: 'event' is not one of: "),
        (
            "/1234/1/FFFF",
            "/1234/1",
            "endpoints.chassis.access[0].source: UUri '//chassis/1234/1': expected three",
        ),
        (
            "//chassis/1234",
            "//chasis/1234",
            "endpoints.chassis.access[0].source: 'chasis' does not live behind",
        ),
        ("FFFF", "0", "endpoints.chassis.access[0].source: no publish has such a resource"),
        (
            'type = "publish"',
            'type = "publish"\nsink = "//*/1/1/1"',
            "endpoints.chassis.access[0].sink: a publication",
        ),
    ],
)
def test_a_mistake_in_an_access_rule_is_refused_at_its_key(old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(with_access((old, new)))
    first = len(SAMPLE.splitlines()) + 2
    assert problem in str(caught.value.problems[0])
    assert first <= caught.value.problems[0].line <= first + 5


def test_with_a_wildcard_endpoint_a_rule_may_name_any_authority() -> None:
    text = with_access(("//chassis", "//mars")).replace(
        'authorities = ["chassis"]', 'authorities = ["chassis", "*"]'
    )
    assert checked(text).endpoints["chassis"].access[0].source == "//mars/1234/1/FFFF"


def test_a_rule_about_publications_may_name_our_authority_for_what_goes_out() -> None:
    own = checked(SAMPLE).authority
    text = with_access(("//chassis/1234/1/FFFF", f"//{own}/0/FF/8000"))
    assert checked(text).endpoints["chassis"].access[0].source == f"//{own}/0/FF/8000"
    with pytest.raises(ConfigError, match="does not live behind"):
        checked(text.replace('type = "publish"', 'type = "notification"'))


@pytest.mark.parametrize("source", ["0/FF/8000", "0/3/8000", "FFFFFFFF/FF/FFFF"])
def test_after_the_advice_for_a_rule_about_the_change_topic_that_topic_goes_out(source: str) -> None:
    own = checked(SAMPLE).authority
    text = with_access(("//chassis/1234/1/FFFF", f"//{own}/{source}"), ('type = "publish"\n', ""))
    with pytest.raises(ConfigError) as caught:
        checked(text)
    [problem] = caught.value.problems
    assert problem.suggestion == 'add type = "publish"'
    mended = apply(text, problem)
    assert mended is not None
    rules = checked(mended).endpoints["chassis"].access
    change_topic = UUri(own, 0, 3, 0x8000)
    assert AccessPolicy("chassis", rules).broadcast_deny_reason(change_topic) == ""


def test_sixty_four_endpoints_are_the_most() -> None:
    def with_endpoints(number: int) -> str:
        sections = [f'[endpoints.e{n}]\ntransport = "local"\nauthorities = ["a{n}"]\n' for n in range(number)]
        return 'authority = "a"\n' + "".join(sections)

    assert len(checked(with_endpoints(64)).endpoints) == 64
    assert [problem.line for problem in problems(with_endpoints(65))] == [2 + 3 * 64]


# --------------------------------------------------------------------------------------------------- fifty mistakes

SERVICE = "[[endpoints.chassis.services]]"
LAST = 'listen = "ws://127.0.0.1:8080/ws"\n'

# The mistake, the edits that cause it ("#!" marks its line), the key path, the suggestion.
MISTAKES: list[tuple[str, list[tuple[str, str]], str, str]] = [
    # --- not TOML
    ("a string without quotes", [('transport = "zenoh"', "transport = zenoh #!")], "", 'write "zenoh" in quotes'),
    ("a string that is not closed", [('mode = "peer"', 'mode = "peer #!')], "", "close the string on its line"),
    ("an array that is not closed", [('7447"]', '7447" #!')], "", "close it with ]"),
    ("an array without a comma", [('["hpc.vin1", "cloud"]', '["hpc.vin1" "cloud"] #!')], "", "put a comma between its elements"),
    ("a header that is not closed", [("[endpoints.chassis]", "[endpoints.chassis #!")], "", "close the header with ]"),
    ("a header with half its brackets", [(SERVICE, SERVICE[:-1] + " #!")], "", "close the header with ]]"),
    ("a colon for an equals sign", [("port = 30500", "port: 30500 #!")], "", "write port = 30500"),
    ("a key without a value", [("port = 30500", "port = #!")], "", "write a value after the ="),
    ("Python's True", [("methods", "offered = True #!\nmethods")], "", "write true and false in small letters"),
    ("an address without quotes", [('"127.0.0.1:30501" ', "127.0.0.1:30501 #!")], "", 'write "127.0.0.1:30501" in quotes'),
    ("an inline table over several lines", [("sd = { ", "sd = { #!\n")], "", "an inline table is on one line, without a comma at its end; or make it a [table]"),
    ("a comment of another language", [("[egress", "// egress #!\n[egress")], "", "a comment begins with #"),
    ("a backslash", [('"/var/lib/ustreamer/recordings"', '"C:\\data" #!')], "", "write \\\\ for each \\, or put the string in 'single quotes'"),
    ("a key twice", [("major = 1", "major = 1\nservice = 3 #!")], "endpoints.chassis.services[0].service", "leave this one out: the first is on line 19"),
    ("an endpoint twice", [("[endpoints.chassis]", "[endpoints.backbone] #!")], "endpoints.backbone", "leave this one out: the first is on line 4"),
    # --- keys
    ("a misspelt key at the top", [('state_dir = "/var/lib/ustreamer"', 'statedir = "x" #!')], "statedir", "did you mean 'state_dir'?"),
    ("a misspelt section", [("[egress.default]", "[egres.default] #!")], "egres", "did you mean 'egress'?"),
    ("a misspelt key of an endpoint", [('listen = ["tcp/127.0.0.1:7447"]', "listn = [] #!")], "endpoints.backbone.listn", "did you mean 'listen'?"),
    ("a misspelt key that is needed", [('bind = "127.0.0.1"', 'bnd = "127.0.0.1" #!')], "endpoints.chassis.bnd", "did you mean 'bind'?"),
    ("a misspelt transport key", [('transport = "zenoh"', 'transprt = "zenoh" #!')], "endpoints.backbone.transprt", "did you mean 'transport'?"),
    ("a misspelt key in an array of tables", [("major = 1", "mayor = 1 #!")], "endpoints.chassis.services[0].mayor", "did you mean 'major'?"),
    ("a misspelt key in an inline table", [("eventgroup = 1 } ]", "event_group = 1 } ] #!")], "endpoints.chassis.services[0].events[0].event_group", "did you mean 'eventgroup'?"),
    ("a hyphen in a key", [("queue_messages = 10000", "queue-messages = 10000 #!")], "egress.default.queue-messages", "did you mean 'queue_messages'?"),
    ("a key of an inner table", [("queue_bytes = 16_000_000", "first_ms = 5 #!")], "egress.default.first_ms", "did you mean 'retry.first_ms'?"),
    ("a key of the endpoint below a service", [('remote = "127.0.0.1:30501" ', "sd = true #!"), ("sd = {", "#sd = {")], "endpoints.chassis.services[0].sd", "move sd up to [endpoints.chassis]: a key belongs to the header above it"),
    ("a key of the top at the end", [(LAST, LAST + 'state_dir = "/tmp" #!\n'), ("state_dir", "# state_dir")], "plugins.wamp.state_dir", "move state_dir up above the first [section]: a key belongs to the header above it"),
    ("an endpoint outside of endpoints", [("[endpoints.backbone] ", "[backbone] #!")], "backbone", "did you mean [endpoints.backbone]?"),
    ("a plugin outside of plugins", [("[plugins.throttle]", "[throttle] #!")], "throttle", "did you mean [plugins.throttle]?"),
    ("no authority", [("authority", "#! authority")], "authority", 'add authority = "hpc.vin1"'),
    ("no transport", [('transport = "zenoh"', ""), ("[endpoints.backbone] ", "[endpoints.backbone] #!")], "endpoints.backbone.transport", 'add transport = "zenoh"'),
    ("no authorities", [('authorities = ["chassis"]', ""), ("[endpoints.chassis]", "[endpoints.chassis] #!")], "endpoints.chassis.authorities", 'add authorities = ["vehicle"]'),
    ("a service without a version", [("major = 1", ""), (SERVICE, SERVICE + " #!")], "endpoints.chassis.services[0].major", "add major = 0"),
    # --- values
    ("an unknown transport", [('transport = "zenoh"', 'transport = "zenho" #!')], "endpoints.backbone.transport", "did you mean 'zenoh'?"),
    ("a transport in capitals", [('transport = "someip"', 'transport = "SOME/IP" #!')], "endpoints.chassis.transport", "did you mean 'someip'?"),
    ("a number in quotes", [("port = 30500", 'port = "30500" #!')], "endpoints.chassis.port", "write 30500, without quotes"),
    ("a bool in quotes", [("methods", 'offered = "true" #!\nmethods')], "endpoints.chassis.services[0].offered", "write true, without quotes"),
    ("a number for a name", [('bind = "127.0.0.1"', "bind = 127 #!")], "endpoints.chassis.bind", 'write "127", in quotes'),
    ("a string for an array", [('["tcp/127.0.0.1:7447"]', '"tcp/127.0.0.1:7447" #!')], "endpoints.backbone.listen", 'write listen = ["tcp/127.0.0.1:7447"]'),
    ("an array for a string", [('mode = "peer"', 'config = ["x"] #!'), ('config = "zenoh', '#config = "zenoh')], "endpoints.backbone.config", 'write config = "x"'),
    ("one table for many", [(SERVICE, "[endpoints.chassis.services] #!")], "endpoints.chassis.services", "write [[endpoints.chassis.services]], with two brackets on each side"),
    ("many tables for one", [("[plugins.throttle]", "[[plugins.throttle]] #!")], "plugins.throttle", "write [plugins.throttle], with one bracket on each side"),
    ("a plugin that is true", [("[plugins.throttle]\ntolerance = 0.1", ""), ("[plugins.usub", "[plugins]\nthrottle = true #!\n[plugins.usub")], "plugins.throttle", "write [plugins.throttle] and its keys below"),
    ("a number that is too large", [("port = 30500", "port = 305000 #!")], "endpoints.chassis.port", "choose 1 to 65535"),
    ("an event id without its highest bit", [("id = 0x8001, eventgroup = 1 } ]", "id = 0x0001 } ] #!")], "endpoints.chassis.services[0].events[0].id", "choose 0x8000 to 0xfffe"),
    ("an element of a wrong type", [("methods = [ 0x0001 ]", 'methods = [ 0x0001,\n"0x0002" ] #!')], "endpoints.chassis.services[0].methods[1]", "write 0x0002, without quotes"),
    ("an unknown choice", [('topic_lifecycle = "off" ', 'topic_lifecycle = "of" #!')], "plugins.usubscription.topic_lifecycle", "did you mean 'off'?"),
    ("a number that is too small", [("queue_messages = 10000", "queue_messages = 0 #!")], "egress.default.queue_messages", "choose 1 to 10000000"),
    ("what only the transport can judge", [('"127.0.0.1:30501" ', '"127.0.0.1" #!')], "endpoints.chassis.services[0].remote", ""),
    # --- names and combinations -----------------------------------------------------------------------------
    ("an authority in capitals", [('"hpc.vin1"  ', '"HPC.vin1" #!')], "authority", "did you mean 'hpc.vin1'?"),
    ("an authority written as a URI", [('["chassis"]', '["up://chassis/"] #!')], "endpoints.chassis.authorities[0]", "did you mean 'chassis'?"),
    ("wildcard as the own authority", [('"hpc.vin1"  ', '"*" #!')], "authority", ""),
    ("an authority in two places", [('["chassis"]', '["chassis", "cloud"] #!')], "endpoints.chassis.authorities[1]", "keep it in one place"),
    ("wildcard in two places", [('"cloud"]', '"*"]'), ('["chassis"]', '["*"] #!')], "endpoints.chassis.authorities[0]", "keep it in one place"),
    ("no authority behind an endpoint", [('["chassis"]', "[] #!")], "endpoints.chassis.authorities", 'name its authorities, or write ["*"] for all not named elsewhere'),
    ("an endpoint with capitals", [("[endpoints.backbone] ", "[endpoints.Back_Bone] #!")], "endpoints.Back_Bone", "did you mean 'back_bone'?"),
    ("an endpoint with a reserved name", [("[endpoints.backbone] ", "[endpoints.self] #!")], "endpoints.self", "rename it, for example to [endpoints.self-network]"),
    ("an endpoint called default", [("[endpoints.backbone] ", "[endpoints.default] #!")], "endpoints.default", "rename it, for example to [endpoints.default-network]"),
    ("an authority twice", [('["chassis"]', '["chassis",\n"chassis"] #!')], "endpoints.chassis.authorities[1]", "keep it in one place"),
    ("limits for an endpoint that is none", [("[egress.default] ", "[egress.chasis] #!")], "egress.chasis", "did you mean 'chassis'?"),
    ("a first pause longer than the longest", [("first_ms = 100, max_ms = 5000 }", "first_ms = 9000, max_ms = 5000 } #!")], "egress.default.retry.first_ms", "choose at most 5000"),
    ("a spool where nothing is kept", [("[plugins.usub", "[egress.backbone]\nspool_messages = 5 #!\n[plugins.usub")], "egress.backbone.spool_messages", "add durable = true to [endpoints.backbone]"),
    ("durable for subscribers in this process", [("[egress.default] ", '[endpoints.inside]\ntransport = "local"\nauthorities = ["x"]\ndurable = true #!\n[egress.default] ')], "endpoints.inside.durable", "leave durable out"),
    ("a plugin that is not installed", [("[plugins.recorder]", "[plugins.recoder] #!")], "plugins.recoder", "did you mean 'recorder'?"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "path", "suggestion"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_refused_on_its_line_with_a_suggestion(
    edits: list[tuple[str, str]], path: str, suggestion: str
) -> None:
    text = edited(*edits)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if "#!" in line]
    found = [(problem.line, problem.path, problem.suggestion) for problem in problems(text)]
    assert found == [(*marked, path, suggestion)]


def test_there_are_fifty_mistakes_and_a_suggestion_for_nine_in_ten() -> None:
    assert len(MISTAKES) >= 50
    assert sum(1 for *_, suggestion in MISTAKES if suggestion) >= 0.9 * len(MISTAKES)


SENTENCES = [
    (
        [('transport = "zenoh"', 'transport = "zenho"')],
        (
            "vehicle.toml:5:1: endpoints.backbone.transport: 'zenho' is not a transport (have: local, someip, zenoh); "
            "did you mean 'zenoh'?"
        ),
    ),
    (
        [("port = 30500", 'port = "30500"')],
        (
            "vehicle.toml:16:1: endpoints.chassis.port: expected an integer, got the string '30500'; "
            "write 30500, without quotes"
        ),
    ),
    (
        [("service = 0x1234", "service = 0x1_2345")],
        "vehicle.toml:19:1: endpoints.chassis.services[0].service: 0x12345 is out of range; choose 0x1 to 0xfffe",
    ),
    (
        [('mode = "peer"', 'mode = "pier"')],
        (
            "vehicle.toml:8:1: endpoints.backbone.mode: 'pier' is not one of: 'client', 'peer', 'router'; "
            "did you mean 'peer'?"
        ),
    ),
    (
        [("tolerance = 0.1", "tolerance = nan")],
        "vehicle.toml:35:1: plugins.throttle.tolerance: nan is out of range; choose 0 to 0.5",
    ),
    (
        [('"127.0.0.1:30501"', '"127.0.0.1"')],
        (
            "vehicle.toml:24:1: endpoints.chassis.services[0].remote: '127.0.0.1': expected an address and a port, "
            "such as 10.0.0.2:30501"
        ),
    ),
    (
        [('["chassis"]', '["cloud"]')],
        (
            "vehicle.toml:14:16: endpoints.chassis.authorities[0]: 'cloud' lives behind endpoint 'backbone' (line 6); "
            "keep it in one place"
        ),
    ),
    (
        [("[plugins.wamp]", "[plugins.dashboard]")],
        (
            "vehicle.toml:38:1: plugins.dashboard: 'dashboard' is not a plugin that is installed "
            "(have: recorder, throttle, usubscription, wamp); leave [plugins.dashboard] out"
        ),
    ),
    (
        [("state_dir = ", "state_dir = 1 #")],
        'vehicle.toml:2:1: state_dir: expected a string, got the integer 1; write "1", in quotes',
    ),
    (
        [("bind = ", "# bind = ")],
        'vehicle.toml:12:1: endpoints.chassis.bind: is missing; add bind = "..."',
    ),
    (
        [('transport = "zenoh"', "")],
        'vehicle.toml:4:1: endpoints.backbone.transport: is missing (have: local, someip, zenoh); add transport = "zenoh"',
    ),
    (
        [("port = 30490", "prot = 30490")],
        (
            "vehicle.toml:17:39: endpoints.chassis.sd.prot: unknown key (have: interface, multicast, port); "
            "did you mean 'port'?"
        ),
    ),
    (
        [('state_dir = "/var/lib/ustreamer"', 'state_dir = ""')],
        "vehicle.toml:2:1: state_dir: '' is not a path; leave state_dir out",
    ),
]


@pytest.mark.parametrize(("edits", "sentence"), SENTENCES)
def test_a_problem_is_one_line_of_text(edits: list[tuple[str, str]], sentence: str) -> None:
    assert [str(problem) for problem in problems(edited(*edits))] == [sentence]


# ------------------------------------------------------------------------------------------------- several at a time

# Mistakes in different places of the sample; none hides another.
APART = [
    ("state_dir = ", "state_dri = ", "state_dri"),
    ('mode = "peer"', "mode = 1", "endpoints.backbone.mode"),
    ('["tcp/127.0.0.1:7447"]', '["a", 2]', "endpoints.backbone.listen[1]"),
    ("connect = []", "conect = []", "endpoints.backbone.conect"),
    ('"cloud"]', '"cloud", "Cloud"]', "endpoints.backbone.authorities[2]"),
    ('["chassis"]', '["hpc.vin1"]', "endpoints.chassis.authorities[0]"),
    ("port = 30500", "port = 0", "endpoints.chassis.port"),
    ("port = 30490, ", "prot = 1, ", "endpoints.chassis.sd.prot"),
    ("service = 0x1234", "service = 0", "endpoints.chassis.services[0].service"),
    ("instance = 1", "instance = '1'", "endpoints.chassis.services[0].instance"),
    ("[ { id = 0x8001, ", "[ {}, { id = 0x8001, ", "endpoints.chassis.services[0].events[0].id"),
    ("eventgroup = 1 } ]", "group = 1 } ]", "endpoints.chassis.services[0].events[?].group"),
    ("methods = [ 0x0001 ]", "methods = [ 'a', 1, 'b' ]", "endpoints.chassis.services[0].methods[2]"),
    ("queue_messages = 10000", "queue_messages = -1", "egress.default.queue_messages"),
    ("first_ms = 100, ", "frist_ms = 100, ", "egress.default.retry.frist_ms"),
    ('"off"', '"on"', "plugins.usubscription.topic_lifecycle"),
    ("tolerance = 0.1", "tolerance = 1", "plugins.throttle.tolerance"),
    ("directory = ", "dir = ", "plugins.recorder.dir"),
    ("[plugins.wamp]", "[plugins.wmap]", "plugins.wmap"),
]


@settings(max_examples=40)
@given(st.sets(st.sampled_from(APART), min_size=1))
def test_every_mistake_is_reported_at_once(rows: set[tuple[str, str, str]]) -> None:
    edits = [(old, new) for old, new, _ in rows]
    shifted = any("{}," in new for _, new in edits)
    expected = {path.replace("?", "1" if shifted else "0") for *_, path in rows}
    found = {problem.path for problem in problems(edited(*edits))}
    assert expected <= found <= expected | {"endpoints.chassis.services[0].methods[0]"}


def test_problems_are_in_the_order_of_the_file() -> None:
    found = problems(edited(*[(old, new) for old, new, _ in APART]))
    lines = [problem.line for problem in found]
    assert lines == sorted(lines)
    assert str(ConfigError(found)).splitlines() == [str(problem) for problem in found]


def test_a_configuration_of_another_kind_is_reported_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        checked("".join(f"key{n} = {n}\n" for n in range(500)))
    assert len(str(caught.value).splitlines()) <= 102


VALUES = ["1", "-1", "0", "0.5", "nan", "true", '""', '"x"', '"*"', "[]", "[1]", '["a", "a"]', "{}", "{ a = {} }",
          "1979-05-27", "07:32:00", "[[], {}]", '"\\u0000"', "99999999999999999999999", '[{ id = "x" }]']  # fmt: skip
PLACES = [index for index, line in enumerate(SAMPLE.splitlines()) if line]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from([*VALUES, "gone", "renamed"])), max_size=6)
)
def test_whatever_is_changed_there_is_a_configuration_or_a_list_of_problems(
    edits: list[tuple[int, str]],
) -> None:
    lines = SAMPLE.splitlines()
    for index, new in edits:
        name, equals, _value = lines[index].partition("=")
        if new == "gone":
            lines[index] = ""
        elif new == "renamed":
            lines[index] = lines[index].replace("a", "aa", 1)
        elif equals:
            lines[index] = f"{name}= {new}"
    for problem in problems_if_any("\n".join(lines)):
        assert 1 <= problem.line <= len(lines)
        assert "\n" not in str(problem)


def test_an_invalid_configuration_ends_the_process_with_78() -> None:
    assert ConfigError.exit_code == 78


def test_configurations_with_the_same_content_are_equal() -> None:
    assert checked(SAMPLE) == checked(SAMPLE.replace("#", "\n#"))
    assert checked(SAMPLE) != checked(edited(("port = 30500", "port = 30502")))


# --- endpoints of plugin sections ------------------------------------------------------------------------------------


class Bringing(Struct, frozen=True, forbid_unknown_fields=True):
    """A section that provides an endpoint."""

    who: str = "screens"

    def endpoints(self, authority: str) -> Mapping[str, EndpointConfig]:
        who = self.who if self.who in {"chassis", "No!"} else f"{self.who}.{authority}"
        return {"screens": EndpointConfig(transport="local", authorities=(who,))}


def with_bringing(*edits: tuple[str, str]) -> StreamerConfig:
    text = edited(*edits) if edits else f"{SAMPLE}[plugins.bringing]\n"
    plugins: dict[str, type[Struct]] = {**PLUGINS, "bringing": Bringing}
    return configuration.check(TomlDocument(Path("vehicle.toml"), text), TRANSPORTS, plugins)


def test_an_endpoint_that_a_section_adds_is_equal_to_one_in_the_file() -> None:
    config = with_bringing()
    assert config.endpoints["screens"].authorities == ("screens.hpc.vin1",)
    assert list(config.endpoints) == ["backbone", "chassis", "screens"]
    assert config.limits("screens").queue_messages == 10_000
    assert configuration.served_authorities(config, TRANSPORTS) == ("hpc.vin1", "chassis")
    limited = with_bringing(
        ("[plugins.throttle]", "[plugins.bringing]\n[egress.screens]\nqueue_messages = 7\n[plugins.throttle]")
    )
    assert limited.limits("screens").queue_messages == 7


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ('[plugins.bringing]\nwho = "chassis"', "'chassis' lives behind endpoint 'chassis'"),
        ('[plugins.bringing]\nwho = "No!"', "'No!' is not an authority"),
        (
            '[plugins.bringing]\n[endpoints.screens]\ntransport = "local"\nauthorities = ["x"]',
            "brings an endpoint 'screens', and there is one",
        ),
    ],
)
def test_an_endpoint_provided_by_a_plugin_must_not_exist_already(section: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_bringing(("[plugins.throttle]", f"{section}\n[plugins.throttle]"))
    (found,) = caught.value.problems
    assert problem in str(found)
    assert "plugins.bringing" in str(found)


def test_a_plugin_of_this_project_that_is_not_installed_is_advised_with_its_package(tmp_path: Path) -> None:
    names = {each.name for each in (Path(__file__).parents[3] / "plugins").iterdir() if each.is_dir()}
    assert names == OWN_PLUGINS
    path = tmp_path / "vehicle.toml"
    path.write_text('authority = "hpc"\n[endpoints]\n[plugins.wamp]\n')
    with pytest.raises(ConfigError) as refused:
        load(path, {}, {"throttle": msgspec.Struct})
    advice = [each.suggestion for each in refused.value.problems if each.path == "plugins.wamp"]
    assert advice == [
        "install the wheel file of ustreamer-wamp: docs/install.md, or leave [plugins.wamp] out"
    ]


def test_a_link_to_a_missing_file_is_not_advised_with_its_own_name(tmp_path: Path) -> None:
    link = tmp_path / "vehicle.toml"
    link.symlink_to(tmp_path / "gone.toml")
    with pytest.raises(ConfigError) as refused:
        read(link)
    [problem] = refused.value.problems
    assert problem.suggestion == f"it is a link to {tmp_path}/gone.toml: expected a link to a file"
    with pytest.raises(ConfigError) as refused:
        read(tmp_path / "vehicl.toml")
    assert refused.value.problems[0].suggestion == ""
