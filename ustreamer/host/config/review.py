# SPDX-License-Identifier: Apache-2.0
"""Warnings: settings of a valid configuration that are probably mistakes.

In: a document and its checked configuration. Out: warnings in the form of problems, each with its line and advice.
Each transport and each plugin judges its own section (`EndpointConfig.warnings`, `ustreamer.hooks.ReviewedConfig`). This
module adds what only the whole file shows: authorities behind no endpoint, limits of egress queues, and empty sections.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.core.egress.limits import OVERHEAD_BYTES
from ustreamer.host.config.config import StreamerConfig, configured_authorities, suggest_authority
from ustreamer.host.config.document import (
    KeyPath,
    Problem,
    TomlDocument,
    format_names,
    format_path,
    parse_steps,
    value_at,
)
from ustreamer.host.config.secrets import exposed_secrets
from ustreamer.transport_port import readable_by_all
from ustreamer.uprotocol.uuri import ANY_AUTHORITY

MIN_QUEUE_BYTES: Final = 1_000_000
"""For a limit that is too small, in advice: some hundred messages with small payloads, or a few large ones."""
_ABSENT: Final = object()
Finding = tuple[KeyPath, str, str]
"""A place, what is wrong there, and advice or ""."""


def review(document: TomlDocument, config: StreamerConfig, *, has_subscriptions: bool) -> list[Problem]:
    """The warnings about a configuration, in the order of their lines.

    `has_subscriptions`: a plugin holds subscriptions, or the configured receivers suffice.
    """
    findings = [
        *_sections(document, config),
        *_egress(document, config),
        *exposed_secrets(document),
        *_open_endpoints(document, config),
        *_exposed_files(document, config),
        *_outside_usubscription(config),
        *([] if has_subscriptions else [_no_subscriptions()]),
    ]
    problems = [document.problem(path, text, advice) for path, text, advice in findings]
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _no_subscriptions() -> Finding:
    return (
        ("plugins", "usubscription"),
        "no plugin holds subscriptions, so a publication reaches configured receivers only",
        "add [plugins.usubscription]",
    )


def _sections(document: TomlDocument, config: StreamerConfig) -> Iterator[Finding]:
    """What the sections say of themselves, and the authorities that they name."""
    known = configured_authorities(config)
    any_is_known = any(ANY_AUTHORITY in each.authorities for each in config.endpoints.values())
    for at, section in _reviewed(document, config):
        for key, text, advice in _call(section, "warnings"):
            path = (*at, *parse_steps(key))
            if value_at(document.data, path, _ABSENT) is not _ABSENT:  # not about a default
                yield path, text, advice
        for key, pattern in () if any_is_known else _call(section, "patterns"):
            authority = pattern.authority_name
            if authority not in {"", ANY_AUTHORITY, *known}:
                yield (
                    (*at, *parse_steps(key)),
                    f"{authority!r} lives behind no endpoint (have: {format_names(known)})",
                    suggest_authority(pattern, known)
                    or f"add {authority!r} to the authorities of its endpoint",
                )


def _reviewed(document: TomlDocument, config: StreamerConfig) -> Iterator[tuple[KeyPath, msgspec.Struct]]:
    in_file = value_at(document.data, ("endpoints",))
    for name, endpoint in config.endpoints.items():
        if isinstance(in_file, Mapping) and name in in_file:
            yield ("endpoints", name), endpoint
    for name, plugin in config.plugins.items():
        yield ("plugins", name), plugin


def _call(section: msgspec.Struct, method: str) -> Any:
    """The result of an optional method of a section."""
    found = getattr(section, method, None)
    return found() if found is not None else ()


def _open_endpoints(document: TomlDocument, config: StreamerConfig) -> Iterator[Finding]:
    """Endpoints without access rules whose network has other machines."""
    for name, endpoint in config.endpoints.items():
        path: KeyPath = ("endpoints", name)
        if endpoint.access or value_at(document.data, path) is None:
            continue
        warned = {each.key for each in endpoint.warnings()}
        key = endpoint.remote_key()
        if key and key not in warned:
            yield (
                (*path, *parse_steps(key)),
                f"no access rules: every entity behind endpoint {name!r} may publish, call and subscribe everything",
                f"add [[endpoints.{name}.access]]",
            )


def _exposed_files(document: TomlDocument, config: StreamerConfig) -> Iterator[Finding]:
    """Keys of TLS that every user of this machine may read."""
    for at, section in _reviewed(document, config):
        for key, path in _call(section, "private_files"):
            if readable_by_all(path):
                yield (
                    (*at, *parse_steps(key)),
                    f"every user of this machine can read the private key in {path}",
                    "chmod 600 the file",
                )


def _outside_usubscription(config: StreamerConfig) -> Iterator[Finding]:
    """Why the uSubscription of another process, which has the streamer's authority, is not followed."""
    if not getattr(config.plugins.get("usubscription"), "external", False):
        return
    authority, at = config.authority, ("plugins", "usubscription", "external")
    if not any({authority, ANY_AUTHORITY} & set(each.authorities) for each in config.endpoints.values()):
        yield (
            at,
            f"core.usubscription of {authority!r} cannot be called: this authority lives behind no endpoint",
            f"add {authority!r} to the authorities of the endpoint of its network",
        )
    for name, endpoint in config.endpoints.items():
        peers = getattr(endpoint, "peers", ())
        others = () if isinstance(peers, bool) else sorted({*peers} - {authority})
        if others:
            yield (
                ("endpoints", name, "peers"),
                f"a streamer of {', '.join(map(repr, others))} does not follow core.usubscription of {authority!r}",
                "give each streamer that follows it this authority",
            )


def _egress(document: TomlDocument, config: StreamerConfig) -> Iterator[Finding]:
    """Sections without keys, limits that another one precedes, and limits of spools where there is none."""
    written = value_at(document.data, ("egress",), {})
    assert isinstance(written, Mapping)  # otherwise the check has refused it
    is_durable = any(endpoint.durable for endpoint in config.endpoints.values())
    for name, section in written.items():
        path: KeyPath = ("egress", name)
        if not section:
            yield path, "is empty and changes nothing", f"leave [{format_path(path)}] out"
        limits = config.limits(name)
        for key in ("queue_bytes", "subscriber_bytes"):
            if key in section and section[key] < OVERHEAD_BYTES:
                text = f"{section[key]} is too little for any message: each counts {OVERHEAD_BYTES} bytes and its payload"
                yield (*path, key), text, f"choose at least {MIN_QUEUE_BYTES}"
        if limits.queue_bytes < OVERHEAD_BYTES:
            continue
        if "queue_messages" in section and limits.queue_messages * OVERHEAD_BYTES > limits.queue_bytes:
            most = limits.queue_bytes // OVERHEAD_BYTES
            yield (
                (*path, "queue_messages"),
                f"{limits.queue_messages} never applies: queue_bytes, {limits.queue_bytes}, is reached after {most} messages",
                f"choose at most {most}",
            )
        for key in () if is_durable else ("spool_messages", "spool_bytes"):
            if key in section:
                yield (*path, key), "is not used: no endpoint is durable", f"leave {key} out"
