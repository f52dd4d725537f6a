# SPDX-License-Identifier: Apache-2.0
"""The configuration of a streamer: one TOML file, checked to the last key before anything is opened.

authority, state_dir        the streamer's authority, and the directory for its state
[endpoints.<name>]          a network: its transport, the authorities behind it, and the keys of that transport
[egress.default | <name>]   queue limits, message age and retry delays of an endpoint
[dead_letters]              how many dead letters stay on disk
[observe]                   where metrics and health are served
[plugins.<name>]            enables a plugin; the plugin defines the keys
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.access import AccessRule
from ustreamer.core.routing.router import SELF
from ustreamer.core.routing.usubscription_codec import (
    CHANGE_RESOURCE,
    USUBSCRIPTION,
    VERSION_3,
    VERSION_4,
)
from ustreamer.host.config.document import (
    ConfigError,
    KeyPath,
    Problem,
    TomlDocument,
    closest_name,
    did_you_mean,
    format_names,
    format_path,
    parse_steps,
    read,
    value_at,
)
from ustreamer.host.config.observe import ObserveConfig
from ustreamer.host.config.secrets import read_secrets
from ustreamer.host.config.validation import Problems, suggest_move_up
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig
from ustreamer.transport_port import BoundAddress, EndpointConfig, TransportKind
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority

__all__ = [
    "ConfigError",
    "DeadLettersConfig",
    "EgressConfig",
    "ObserveConfig",
    "Problem",
    "RetryConfig",
    "StreamerConfig",
    "TomlDocument",
    "check",
    "load",
    "read",
    "served_authorities",
]

MAX_ENDPOINTS: Final = 64  # each has threads, queues and metrics of its own
DEFAULT_SECTION: Final = "default"
"""The [egress] section with the limits for every endpoint. No endpoint has this name."""

DURABLE_AGE_MS: Final = 86_400_000
"""How long a message without ttl waits for a durable endpoint without `max_age_ms`: persisted messages may wait for
hours.
"""

OWN_PLUGINS: Final = frozenset(
    {"mqtt", "payloads", "recorder", "throttle", "tracing", "usubscription", "wamp"}
)
"""The plugins of this project; their packages are named ustreamer-<plugin>."""

_STRANGE_KEYS: Final = 2
"""Keys of another transport that show that its name is wrong; a single one may be a mistake of its own."""
_ENDPOINT_NAME: Final = re.compile(r"[a-z0-9_-]{1,64}")

Milliseconds = Annotated[int, Meta(ge=1, le=3_600_000)]


class RetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delays before a refused message is retried: the first one, doubled each time up to the last one."""

    first_ms: Milliseconds | UnsetType = UNSET
    max_ms: Milliseconds | UnsetType = UNSET


class EgressConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[egress.default] or [egress.<endpoint>]. Unset keys of an endpoint come from default, then from EgressLimits."""

    queue_messages: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    queue_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] | UnsetType = UNSET
    retry: RetryConfig = RetryConfig()
    max_age_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | UnsetType = UNSET
    spool_messages: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    spool_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] | UnsetType = UNSET
    subscriber_messages: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    subscriber_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] | UnsetType = UNSET

    def apply_to(self, limits: EgressLimits) -> EgressLimits:
        """`limits` with the keys set here."""
        values = {
            "queue_messages": self.queue_messages,
            "queue_bytes": self.queue_bytes,
            "retry_first_ms": self.retry.first_ms,
            "retry_max_ms": self.retry.max_ms,
            "max_age_ms": self.max_age_ms,
            "spool_messages": self.spool_messages,
            "spool_bytes": self.spool_bytes,
            "subscriber_messages": self.subscriber_messages,
            "subscriber_bytes": self.subscriber_bytes,
        }
        return msgspec.structs.replace(limits, **{name: v for name, v in values.items() if v is not UNSET})


class StreamerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration with every key, name and number checked.

    Relative paths in endpoint sections start at `base`; `state_dir` is absolute. `egress` has the limits of every
    endpoint and, as "default", those of any other queue. Plugins keep the order of the file.
    """

    base: Path
    authority: str
    state_dir: Path
    endpoints: dict[str, EndpointConfig]
    egress: dict[str, EgressLimits]
    plugins: dict[str, msgspec.Struct]
    dead_letters: DeadLettersConfig = DeadLettersConfig()
    observe: ObserveConfig | None = None

    def limits(self, endpoint: str) -> EgressLimits:
        """The limits of an endpoint's queue, including the streamer's own endpoint."""
        return self.egress.get(endpoint, self.egress[DEFAULT_SECTION])


def load(
    path: Path, transports: Mapping[str, TransportKind], plugin_configs: Mapping[str, type[msgspec.Struct]]
) -> StreamerConfig:
    """Read and check a file. Raises ConfigError with all problems; no side effects.

    `transports` maps the names of `transport = ...`; `plugin_configs` has the Config of every installed plugin.
    """
    return check(read(path), transports, plugin_configs)


def served_authorities(config: StreamerConfig, transports: Mapping[str, TransportKind]) -> tuple[str, ...]:
    """The authorities served by the local uSubscription: the own one, and those behind transports without a
    uSubscription.
    """
    others = {
        authority
        for endpoint in config.endpoints.values()
        if not transports[endpoint.transport].provides_usubscription(endpoint)
        for authority in endpoint.authorities
    }
    return (config.authority, *sorted(others - {config.authority, ANY_AUTHORITY}))


def configured_authorities(config: StreamerConfig) -> tuple[str, ...]:
    """Every authority with a configured endpoint, including the own one. `"*"` names none."""
    others = {authority for endpoint in config.endpoints.values() for authority in endpoint.authorities}
    return (config.authority, *sorted(others - {config.authority, ANY_AUTHORITY}))


def configured_addresses(config: StreamerConfig) -> list[BoundAddress]:
    """The addresses that the endpoints and [observe] bind."""
    found = [address for section in config.endpoints.values() for address in section.bound_addresses()]
    if config.observe is not None:
        found.append(BoundAddress("listen", "tcp", *config.observe.address))
    return found


def endpoint_by_authority(config: StreamerConfig) -> dict[str, str]:
    """The endpoint of each authority."""
    return {
        authority: name for name, section in config.endpoints.items() for authority in section.authorities
    }


def authorities_by_endpoint(config: StreamerConfig) -> dict[str, tuple[str, ...]]:
    """The authorities behind each endpoint."""
    return {name: section.authorities for name, section in config.endpoints.items()}


def sibling_authorities(config: StreamerConfig, name: str) -> frozenset[str]:
    """The authorities behind the other endpoints that have the transport of endpoint `name`."""
    transport = config.endpoints[name].transport
    others = (each for other, each in config.endpoints.items() if other != name)
    return frozenset(
        authority for each in others if each.transport == transport for authority in each.authorities
    )


class ConfiguredAuthorities(Collection[str]):
    """`configured_authorities` of the current configuration, read again by each call."""

    def __init__(self, config: Callable[[], StreamerConfig]) -> None:
        self._config = config

    def __contains__(self, authority: object) -> bool:
        return authority in configured_authorities(self._config())

    def __iter__(self) -> Iterator[str]:
        return iter(configured_authorities(self._config()))

    def __len__(self) -> int:
        return len(configured_authorities(self._config()))


# --- checks ----------------------------------------------------------------------------------------------------------

_Table = dict[str, Any]  # a section as parsed by tomllib; its own Struct checks the content


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The top level of the file, with its sections unchecked."""

    authority: Annotated[str, Meta(examples=["hpc.vin1"])]
    endpoints: dict[str, _Table] = {}  # `_endpoints` notes its absence
    state_dir: Path = Path("/var/lib/ustreamer")
    egress: dict[str, Any] = {}  # `_egress` checks that they are tables
    dead_letters: _Table = {}
    observe: _Table = {}
    plugins: dict[str, _Table] = {}


def check(
    document: TomlDocument,
    transports: Mapping[str, TransportKind],
    plugin_configs: Mapping[str, type[msgspec.Struct]],
) -> StreamerConfig:
    """Check a parsed document; as `load`."""
    problems = Problems(document)
    read_secrets(problems)
    file = problems.convert_section((), _File, _section_advice(document, plugin_configs))
    _check_own_authority(problems)
    provided = {name for name, each in plugin_configs.items() if hasattr(each, "endpoints")}
    endpoints = _endpoints(problems, transports, provided)
    _check_authority_placement(problems)
    _check_access(problems, endpoints, "" if file is None else file.authority)
    plugins = _plugins(problems, plugin_configs)
    added = _plugin_endpoints(problems, plugins)
    endpoints |= {name: endpoint for name, (_, endpoint) in added.items()}
    egress = _egress(problems, endpoints)
    dead_letters = _dead_letters(problems)
    observe = _observe(problems)
    sections: dict[str, KeyPath] = {name: ("endpoints", name) for name in endpoints}
    sections |= {name: ("plugins", plugin) for name, (plugin, _) in added.items()}
    _check_bound_addresses(problems, endpoints, sections, observe)
    problems.raise_if_any()
    assert file is not None  # otherwise a problem was noted
    return StreamerConfig(
        base=document.base,
        authority=file.authority,
        state_dir=file.state_dir,
        endpoints=endpoints,
        egress={
            DEFAULT_SECTION: egress[DEFAULT_SECTION],
            **{name: egress.get(name, egress[DEFAULT_SECTION]) for name in endpoints},
        },
        plugins=plugins,
        dead_letters=dead_letters,
        observe=observe,
    )


def _section_advice(document: TomlDocument, plugin_configs: Mapping[str, object]) -> Callable[[KeyPath], str]:
    """Advice about a top-level key that belongs in [endpoints] or [plugins]."""

    def advice(path: KeyPath) -> str:
        name = path[0]
        if name in plugin_configs:
            return f"did you mean [plugins.{name}]?"
        section = document.data.get(str(name))
        if isinstance(section, dict) and "transport" in section:
            return f"did you mean [endpoints.{name}]?"
        return ""

    return advice


def _tables(problems: Problems, section: str) -> dict[str, _Table]:
    """The tables in a top-level section. A value that is no table has a problem noted already."""
    tables = problems.document.data.get(section)
    if not isinstance(tables, dict):
        return {}
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


# --- endpoints -------------------------------------------------------------------------------------------------------


def _endpoints(
    problems: Problems, installed: Mapping[str, TransportKind], provided: AbstractSet[str]
) -> dict[str, EndpointConfig]:
    """The sections in [endpoints]. The endpoints of the transports `provided` come with a plugin's section."""
    transports = {name: kind for name, kind in installed.items() if name not in provided}
    tables = _tables(problems, "endpoints")
    if problems.document.data.get("endpoints", {}) == {}:
        problems.add_problem(
            ("endpoints",), "there is no endpoint", "add [endpoints.<name>] with transport and authorities"
        )
    if len(tables) > MAX_ENDPOINTS:
        problems.add_problem(
            ("endpoints", [*tables][MAX_ENDPOINTS]), f"there are more than {MAX_ENDPOINTS} endpoints"
        )
    endpoints = {}
    for name, table in tables.items():
        _check_endpoint_name(problems, name)
        if isinstance(plugin := table.get("transport"), str) and plugin in provided:
            problems.add_problem(
                ("endpoints", name, "transport"),
                f"the section [plugins.{plugin}] brings the endpoint of {plugin!r}",
                f"write [plugins.{plugin}] in place of [endpoints.{name}]",
            )
            continue
        kind = _transport(problems, name, table, transports)
        if kind is None or _is_of_another_transport(problems, name, table, transports):
            continue
        endpoint = problems.convert_section(("endpoints", name), kind.config, _top_level_advice)
        if endpoint is not None:
            endpoints[name] = endpoint
            if endpoint.durable and not kind.outlives_streamer:
                problems.add_problem(
                    ("endpoints", name, "durable"),
                    f"receivers behind a {table['transport']!r} endpoint end with the streamer: no message can wait for them on disk",
                    "leave durable out",
                )
    return endpoints


def _check_endpoint_name(problems: Problems, name: str) -> None:
    if name in {SELF, DEFAULT_SECTION}:
        problems.add_problem(
            ("endpoints", name),
            f"{name!r} is not a name for an endpoint: it is reserved",
            f"rename it, for example to [endpoints.{name}-network]",
        )
    elif not _ENDPOINT_NAME.fullmatch(name):
        better = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:64]
        problems.add_problem(
            ("endpoints", name),
            "the name of an endpoint is made of 1 to 64 of a-z 0-9 - _",
            f"did you mean {better!r}?" if better else "",
        )


def _transport(
    problems: Problems, name: str, table: _Table, transports: Mapping[str, TransportKind]
) -> TransportKind | None:
    """The transport kind of an endpoint; None, with a problem noted, if it is unknown."""
    path = ("endpoints", name, "transport")
    available = f"(have: {format_names(transports)})"
    if "transport" not in table:
        known = {key for each in transports.values() for key in each.config.__struct_encode_fields__}
        misspelt = closest_name("transport", [key for key in table if key not in known])
        if misspelt is not None:
            problems.add_problem((*path[:-1], misspelt), "unknown key", "did you mean 'transport'?")
        else:
            likely = _likely_transport(table, transports)
            problems.add_problem(path, f"is missing {available}", f'add transport = "{likely}"')
        return None
    transport = table["transport"]
    write_likely = f'write transport = "{_likely_transport(table, transports)}"'
    if not isinstance(transport, str):
        problems.add_problem(path, f"expected the name of a transport {available}", write_likely)
    elif transport not in transports:
        problems.add_problem(
            path,
            f"{transport!r} is not a transport {available}",
            did_you_mean(transport, transports) or write_likely,
        )
    else:
        return transports[transport]
    return None


def _likely_transport(table: _Table, transports: Mapping[str, TransportKind]) -> str:
    """The transport that has most of the keys in a section; of several, one that needs few others."""

    def fitness(name: str) -> tuple[int, int, bool]:
        fields = msgspec.structs.fields(transports[name].config)
        needed = sum(each.required and each.encode_name not in table for each in fields)
        return (
            len(table.keys() & {each.encode_name for each in fields}),
            -needed,
            _is_built_in(transports[name]),
        )

    return max(transports, key=fitness, default="...")


def _is_built_in(kind: TransportKind) -> bool:
    return kind.config.__module__.startswith("ustreamer.")


def _is_of_another_transport(
    problems: Problems, name: str, table: _Table, transports: Mapping[str, TransportKind]
) -> bool:
    """Whether a section has several keys that only another transport has; then one problem is noted."""
    own, likely = str(table["transport"]), _likely_transport(table, transports)
    strange, left = (
        sorted(table.keys() - {"transport", *transports[each].config.__struct_encode_fields__})
        for each in (own, likely)
    )
    if len(strange) < _STRANGE_KEYS or left:
        return False
    problems.add_problem(
        ("endpoints", name, "transport"),
        f"{own!r} has no {', '.join(strange)}: these are keys of {likely!r}",
        f'write transport = "{likely}"',
    )
    return True


def _check_bound_addresses(
    problems: Problems,
    endpoints: Mapping[str, EndpointConfig],
    sections: Mapping[str, KeyPath],
    observe: ObserveConfig | None,
) -> None:
    """Check that no two sections bind one address: the second one could not open."""
    bound = [
        ((*sections[name], *parse_steps(address.key)), address)
        for name, endpoint in endpoints.items()
        for address in endpoint.bound_addresses()
    ]
    if observe is not None:
        bound.append((("observe", "listen"), BoundAddress("listen", "tcp", *observe.address)))
    by_port: dict[tuple[str, int], list[tuple[KeyPath, BoundAddress]]] = {}
    for path, address in bound:
        others = by_port.setdefault((address.protocol, address.port), [])
        taken = next((other for other, each in others if address.conflicts_with(each)), None)
        others.append((path, address))
        if taken is not None:
            first, second = sorted((path, taken), key=problems.document.positions.position_of)
            line = problems.document.positions.line_of(first)
            problems.add_problem(
                second,
                f"{address} is bound by {format_path(first)} (line {line})",
                "choose another path" if address.protocol == "unix" else "choose another port",
            )


def _top_level_advice(path: KeyPath) -> str:
    """Advice about a key in a section that belongs at the top level."""
    key = str(path[-1])
    return suggest_move_up(key, ()) if key in _File.__struct_fields__ else ""


# --- authorities -----------------------------------------------------------------------------------------------------


def _check_own_authority(problems: Problems) -> None:
    authority = problems.document.data.get("authority")
    if isinstance(authority, str):
        if authority == ANY_AUTHORITY:
            problems.add_problem(
                ("authority",),
                "'*' stands for other authorities: expected the streamer's own authority, such as hpc.vin1",
            )
        else:
            _check_authority(problems, ("authority",), authority)


def _check_authority_placement(problems: Problems) -> None:
    """Check that every authority, and "*" likewise, is behind one endpoint only."""
    homes: dict[str, KeyPath] = {}
    for name, table in _tables(problems, "endpoints").items():
        authorities = table.get("authorities")
        if authorities == []:
            problems.add_problem(
                ("endpoints", name, "authorities"),
                "no authority is behind this endpoint",
                'name its authorities, or write ["*"] for all not named elsewhere',
            )
        for index, authority in enumerate(authorities if isinstance(authorities, list) else ()):
            path = ("endpoints", name, "authorities", index)
            if not isinstance(authority, str):
                continue
            _check_authority(problems, path, authority)
            home = homes.setdefault(authority, path)
            if home != path:
                line = problems.document.positions.line_of(home)
                problems.add_problem(
                    path,
                    f"{authority!r} lives behind endpoint {home[1]!r} (line {line})",
                    "keep it in one place",
                )


def _check_access(problems: Problems, endpoints: Mapping[str, EndpointConfig], own: str) -> None:
    """Check that a rule concerns sources behind its endpoint: other sources are refused regardless of rules.

    A rule about publications of our `own` authority is about the broadcast topics that go out there.
    """
    for name, endpoint in endpoints.items():
        authorities = endpoint.authorities
        is_known = bool(authorities) and all(map(_is_authority, set(authorities) - {ANY_AUTHORITY}))
        for index, rule in enumerate(endpoint.access if is_known else ()):
            authority = rule.patterns[0].authority_name
            goes_out = authority == own and rule.type == "publish"
            known = goes_out or authority in {ANY_AUTHORITY, *authorities}
            if not known and ANY_AUTHORITY not in authorities:
                problems.add_problem(
                    ("endpoints", name, "access", index, "source"),
                    f"{authority!r} does not live behind endpoint {name!r} (have: {format_names(authorities)})",
                    _suggest_for_access(rule, authorities, own),
                )


def _suggest_for_access(rule: AccessRule, authorities: Sequence[str], own: str) -> str:
    source = rule.patterns[0]
    changes = (UUri(own, USUBSCRIPTION, version, CHANGE_RESOURCE) for version in (VERSION_3, VERSION_4))
    if rule.type is None and rule.sink is None and any(source.matches(each) for each in changes):
        return 'add type = "publish"'  # a broadcast topic, which goes out there
    return suggest_authority(source, authorities) or f"write //{authorities[0]}/... or //*/..."


def suggest_authority(pattern: UUri, authorities: Iterable[str]) -> str:
    """The suggestion of the pattern with the nearest authority, or ""."""
    name = closest_name(pattern.authority_name, authorities)
    return "" if name is None else f"did you mean '{msgspec.structs.replace(pattern, authority_name=name)}'?"


def _check_authority(problems: Problems, path: KeyPath, authority: str) -> None:
    if _is_authority(authority):
        return
    better = re.sub(r"[^a-z0-9\-._~]+", "-", authority.removeprefix("up:").strip("/ ").lower()).strip("-")
    problems.add_problem(
        path,
        f"{authority!r} is not an authority: 1 to 128 of a-z 0-9 - . _ ~, or an IP address",
        f"did you mean {better!r}?" if _is_authority(better) else "",
    )


def _is_authority(text: str) -> bool:
    try:
        check_authority(text, text)
    except UStatusError:
        return False
    return True


# --- egress and plugins ----------------------------------------------------------------------------------------------


def _egress(problems: Problems, endpoints: Mapping[str, EndpointConfig]) -> dict[str, EgressLimits]:
    """The limits by the names in [egress], of durable endpoints, and always as "default"."""
    tables = _tables(problems, "egress")
    if _has_limits_of_no_endpoint(problems):
        return {DEFAULT_SECTION: EgressLimits()}
    known = [*{**_tables(problems, "endpoints"), **endpoints}, DEFAULT_SECTION]
    default = (
        _limits(problems, DEFAULT_SECTION, EgressLimits()) if DEFAULT_SECTION in tables else EgressLimits()
    )
    limits = {DEFAULT_SECTION: default}
    for name in tables:
        if name not in known:
            problems.add_problem(
                ("egress", name),
                f"{name!r} is not an endpoint (have: {format_names(known)})",
                did_you_mean(name, known) or f"leave [{format_path(('egress', name))}] out",
            )
        if name != DEFAULT_SECTION:
            limits[name] = _limits(problems, name, default)
        durable = name in endpoints and endpoints[name].durable
        _check_subscriber_limits(problems, name, limits[name], "spool" if durable else "queue")
    for name, endpoint in endpoints.items():
        if endpoint.durable:
            set_by = (tables.get(name, {}), tables.get(DEFAULT_SECTION, {}))
            if not any("max_age_ms" in table for table in set_by):
                limits[name] = msgspec.structs.replace(limits.get(name, default), max_age_ms=DURABLE_AGE_MS)
            continue
        for key in ("spool_messages", "spool_bytes"):
            if key in tables.get(name, {}):
                problems.add_problem(
                    ("egress", name, key),
                    f"endpoint {name!r} keeps nothing on disk",
                    f"add durable = true to [endpoints.{name}]",
                )
    return limits


def _has_limits_of_no_endpoint(problems: Problems) -> bool:
    """Whether [egress] itself has limits, or values that are no tables; then problems are noted."""
    written = problems.document.data.get("egress")
    if not isinstance(written, dict):
        return False
    plain = [name for name, each in written.items() if not isinstance(each, dict)]
    limits = [name for name in written if name in EgressConfig.__struct_encode_fields__]
    if limits:
        problems.add_problem(
            ("egress",) if problems.document.writes_header(("egress",)) else ("egress", limits[0]),
            f"{', '.join(limits)}: limits have a section: [egress.{DEFAULT_SECTION}], or one for each endpoint",
            f"write [egress.{DEFAULT_SECTION}]",
        )
        return True
    for name in plain:
        problems.add_problem(("egress", name), "expected a table of limits", f"leave {name} out")
    return bool(plain)


def _limits(problems: Problems, name: str, default: EgressLimits) -> EgressLimits:
    path: KeyPath = ("egress", name)
    section = problems.convert_section(path, EgressConfig, _top_level_advice)
    if section is None:
        return default
    limits = section.apply_to(default)
    written = value_at(problems.document.data, (*path, "retry"))
    if limits.retry_first_ms > limits.retry_max_ms and isinstance(written, dict) and written:
        key = "first_ms" if "first_ms" in written else "max_ms"
        problems.add_problem(
            (*path, "retry", key),
            f"the first pause, {limits.retry_first_ms} ms, is longer than the longest, {limits.retry_max_ms} ms",
            f"choose at most {limits.retry_max_ms}"
            if key == "first_ms"
            else f"choose at least {limits.retry_first_ms}",
        )
    return limits


def _check_subscriber_limits(problems: Problems, name: str, limits: EgressLimits, queue: str) -> None:
    """Note a subscriber limit above the endpoint's limit, at the key of this section that causes it."""
    path: KeyPath = ("egress", name)
    written = value_at(problems.document.data, path)
    if not isinstance(written, dict):
        return
    for unit in ("messages", "bytes"):
        own, whole = f"subscriber_{unit}", f"{queue}_{unit}"
        own_limit, whole_limit = getattr(limits, own), getattr(limits, whole)
        if own_limit is None or own_limit <= whole_limit:
            continue
        if own in written:
            text = f"one subscriber may not have more than all together, {whole} = {whole_limit}"
            problems.add_problem((*path, own), text, f"choose at most {whole_limit}")
        elif whole in written:
            text = f"is less than one subscriber may have, {own} = {own_limit} of [egress.{DEFAULT_SECTION}]"
            problems.add_problem((*path, whole), text, f"add {own} = {whole_limit} or less")


def _dead_letters(problems: Problems) -> DeadLettersConfig:
    if not isinstance(problems.document.data.get("dead_letters"), dict):
        return DeadLettersConfig()
    section = problems.convert_section(("dead_letters",), DeadLettersConfig, _top_level_advice)
    return DeadLettersConfig() if section is None else section


def _observe(problems: Problems) -> ObserveConfig | None:
    if not isinstance(problems.document.data.get("observe"), dict):
        return None
    return problems.convert_section(("observe",), ObserveConfig, _top_level_advice)


def _plugins(
    problems: Problems, plugin_configs: Mapping[str, type[msgspec.Struct]]
) -> dict[str, msgspec.Struct]:
    plugins = {}
    for name in _tables(problems, "plugins"):
        path: KeyPath = ("plugins", name)
        if name not in plugin_configs:
            problems.add_problem(
                path,
                f"{name!r} is not a plugin that is installed (have: {format_names(plugin_configs)})",
                _missing_plugin_advice(name, plugin_configs),
            )
            continue
        section = problems.convert_section(path, plugin_configs[name], _top_level_advice)
        if section is not None:
            plugins[name] = section
    return plugins


def _missing_plugin_advice(name: str, plugin_configs: Iterable[str]) -> str:
    leave_out = f"leave [{format_path(('plugins', name))}] out"
    if name in OWN_PLUGINS:
        return f"install the wheel file of ustreamer-{name}: docs/install.md, or {leave_out}"
    return did_you_mean(name, plugin_configs) or leave_out


def _plugin_endpoints(
    problems: Problems, plugins: Mapping[str, msgspec.Struct]
) -> dict[str, tuple[str, EndpointConfig]]:
    """The endpoints that plugin sections provide (`ustreamer.hooks.EndpointProvider`), each with its plugin."""
    own = problems.document.data.get("authority")
    configured = _tables(problems, "endpoints")
    homes = {
        authority: name
        for name, table in configured.items()
        if isinstance(table.get("authorities"), list)
        for authority in table["authorities"]
        if isinstance(authority, str)
    }
    added: dict[str, tuple[str, EndpointConfig]] = {}
    for plugin, section in plugins.items():
        endpoints = getattr(section, "endpoints", None)
        if endpoints is None or not isinstance(own, str):
            continue
        for name, endpoint in endpoints(own).items():
            path: KeyPath = ("plugins", plugin)
            if name in configured or name in added:
                problems.add_problem(
                    path, f"brings an endpoint {name!r}, and there is one", f"rename [endpoints.{name}]"
                )
            for authority in endpoint.authorities:
                _check_authority(problems, path, authority)
                home = homes.setdefault(authority, name)
                if home != name:
                    problems.add_problem(
                        path, f"{authority!r} lives behind endpoint {home!r}", "choose another authority"
                    )
            added[name] = plugin, endpoint
    return added
