# SPDX-License-Identifier: Apache-2.0
"""Compares two configurations and decides if a running streamer can change from one to the other.

In: two checked configurations. Out: changed keys, and keys that need a restart. Nothing here acts.

A reload may change authorities of endpoints, egress limits, access rules, plugin sections that the plugins accept, and
keys that a transport accepts: the services of a SOME/IP network.
All other changes are refused together, each by its key, and nothing changes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.host.config.config import StreamerConfig, configured_authorities
from ustreamer.transport_port import EndpointConfig, TransportKind
from ustreamer.uprotocol.uuri import ANY_AUTHORITY

RESTART: Final = "needs a restart"
_RELOADABLE_KEYS: Final = frozenset({"access"})
"""Endpoint keys that routing reads and no transport does. `authorities` is reloadable with conditions."""

_Tree = dict[str, Any]


class ReloadRefused(Exception):
    """A valid configuration that needs a restart; `problems` has a line for each key."""

    def __init__(self, problems: list[str]) -> None:
        self.problems: Final = tuple(problems)
        super().__init__("\n".join(problems))


def changed_keys(old: StreamerConfig, new: StreamerConfig) -> list[str]:
    """The keys whose values differ, such as endpoints.cloud.authorities."""
    return sorted(_differing(_tree(old), _tree(new)))


def keys_needing_restart(
    old: StreamerConfig, new: StreamerConfig, kinds: Mapping[str, TransportKind]
) -> list[str]:
    """Why a streamer with configuration `old` cannot change to `new` without a restart. Excludes reasons of plugins."""
    shared = old.endpoints.keys() & new.endpoints.keys()
    of_transports = {
        f"endpoints.{name}.{key}"
        for name in shared
        for key in kinds[old.endpoints[name].transport].reloadable_keys
    }
    reasons = [
        f"{key}: {RESTART}"
        for key in changed_keys(old, new)
        if not _is_reloadable(key) and key not in of_transports
    ]
    if set(old.plugins) == set(new.plugins) and list(old.plugins) != list(new.plugins):
        reasons.append(f"plugins: another order {RESTART}")
    for name in sorted(shared):
        kind = kinds[old.endpoints[name].transport]
        if old.endpoints[name].transport == new.endpoints[name].transport and (
            why := kind.restart_reason(old.endpoints[name], new.endpoints[name])
        ):
            reasons += [f"endpoints.{name}.{key}: {why} {RESTART}" for key in sorted(kind.reloadable_keys)]
        before, after = old.endpoints[name].authorities, new.endpoints[name].authorities
        served = not kinds[old.endpoints[name].transport].provides_usubscription(old.endpoints[name])
        if before != after and (why := _restart_reason(old.authority, before, after, served=served)):
            reasons.append(f"endpoints.{name}.authorities: {why} {RESTART}")
    removed = sorted(set(configured_authorities(old)) - set(configured_authorities(new)))
    if removed and any(ANY_AUTHORITY in each.authorities for each in new.endpoints.values()):
        # Plugins trust a configured authority. Behind '*' any sender could claim that name.
        reasons.append(f"endpoints: leaving {', '.join(map(repr, removed))} to '*' {RESTART}")
    return reasons


def changed_endpoints(
    old: StreamerConfig, new: StreamerConfig, kinds: Mapping[str, TransportKind]
) -> dict[str, EndpointConfig]:
    """The sections with changes for their transports."""
    return {
        name: section
        for name, section in new.endpoints.items()
        if any(
            getattr(section, key) != getattr(old.endpoints[name], key)
            for key in kinds[section.transport].reloadable_keys
        )
    }


def changed_plugins(old: StreamerConfig, new: StreamerConfig) -> dict[str, msgspec.Struct]:
    """The changed sections of plugins that both configurations have."""
    return {
        name: section
        for name, section in new.plugins.items()
        if name in old.plugins and section != old.plugins[name]
    }


def _restart_reason(own: str, before: tuple[str, ...], after: tuple[str, ...], *, served: bool) -> str:
    """The change of authorities that needs a restart; "" if none does."""
    if served:
        # They are part of the addresses of the transport's entities, and of the uSubscription store.
        return "another authority behind a transport without a uSubscription"
    moved = set(before) ^ set(after)
    if own in moved:
        return f"moving the streamer's own authority {own!r}"
    if ANY_AUTHORITY in moved:
        # The filters of all other endpoints would change, and some messages would match two filters.
        return "moving '*'"
    return ""


def _is_reloadable(key: str) -> bool:
    section, _, rest = key.partition(".")
    match section:
        case "egress":
            return True
        case "plugins":
            return "." in rest  # the plugin decides about keys in its section
        case "endpoints":
            name_and_key = rest.split(".")
            return len(name_and_key) > 1 and name_and_key[1] in {*_RELOADABLE_KEYS, "authorities"}
    return False


def _tree(config: StreamerConfig) -> _Tree:
    tree: _Tree = msgspec.to_builtins(config, enc_hook=str)
    del tree["base"]  # relative paths are resolved already
    # The plugin decides about the keys of an endpoint that its section adds.
    for plugin in config.plugins.values():
        for name in plugin.endpoints(config.authority) if hasattr(plugin, "endpoints") else ():
            tree["endpoints"].pop(name, None)
    # Limits of an added or removed endpoint are no separate change.
    tree["egress"] = {
        name: limits for name, limits in tree["egress"].items() if name in {"default", *config.endpoints}
    }
    return tree


def _differing(old: _Tree, new: _Tree, at: str = "") -> Iterator[str]:
    for key in {**old, **new}:
        path = f"{at}.{key}" if at else key
        before, after = old.get(key), new.get(key)
        if before == after and (key in old) == (key in new):
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differing(before, after, path)
        else:
            yield path
