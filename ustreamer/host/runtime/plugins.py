# SPDX-License-Identifier: Apache-2.0
"""Finds, imports, creates and registers plugins."""

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import pluggy

from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.plugin_errors import plugin_name, safe_str
from ustreamer.core.routing.identity import Authorise, Peer
from ustreamer.core.routing.subscriptions import Change, Subscription, SubscriptionWatch
from ustreamer.hooks import PROJECT, Hooks, PluginContext
from ustreamer.host.runtime.entry_points import PLUGINS, PathEntryPoint, path_entry_points
from ustreamer.transport_port import TransportKind
from ustreamer.transports import BuiltinTransports
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.ustatus import UCode, UStatus

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger("ustreamer.streamer")

AnyEntryPoint: TypeAlias = "EntryPoint | PathEntryPoint"
E = TypeVar("E", bound="EntryPoint | PathEntryPoint")

CLASS_HOOKS: Final = ("ustreamer_transports",)


class PluginError(Exception):
    """A plugin that cannot be used. The text names the plugin and the expectation."""


class PluginInfo(msgspec.Struct, frozen=True):
    """An installed plugin: its name in the configuration, its distribution and version, and the hooks it implements."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]


def installed_plugins() -> "dict[str, EntryPoint]":
    """The entry points of all installed plugins, by name. Nothing is imported yet."""
    from importlib.metadata import entry_points

    return _by_name(entry_points(group=PLUGINS))


def _configured_plugins(names: Collection[str]) -> "Mapping[str, AnyEntryPoint]":
    """As `installed_plugins`, if each of `names` is in it, but possibly without others."""
    found = _by_name(path_entry_points(PLUGINS))
    return found if all(name in found for name in names) else installed_plugins()


def _by_name(entries: Iterable[E]) -> dict[str, E]:
    found: dict[str, E] = {}
    for entry in entries:
        if entry.name in found and found[entry.name].value != entry.value:
            raise PluginError(
                f"plugin {entry.name!r} is defined twice: {found[entry.name].value} and {entry.value}"
            )
        found[entry.name] = entry
    return found


def plugin_class(entry: "AnyEntryPoint") -> type[Any]:
    """Import a plugin's class. Raises PluginError if that fails or the class has no Config."""
    try:
        loaded = entry.load()
    except Exception as error:  # foreign code may raise anything while it is imported
        raise PluginError(f"plugin {entry.name!r}: cannot load {entry.value!r}: {error}") from error
    config = getattr(loaded, "Config", None)
    if not (isinstance(loaded, type) and isinstance(config, type) and issubclass(config, msgspec.Struct)):
        raise PluginError(
            f"plugin {entry.name!r}: {entry.value!r} is not a class with a msgspec.Struct named Config"
        )
    for hook in CLASS_HOOKS:
        if hasattr(loaded, hook) and not isinstance(inspect.getattr_static(loaded, hook), staticmethod):
            raise PluginError(
                f"plugin {entry.name!r}: {hook} is called on the class; make it a static method"
            )
    return loaded


def load_plugin_classes(
    names: Collection[str] | None = None,
) -> tuple[dict[str, type[Any]], dict[str, PluginError]]:
    """The classes of the installed plugins in `names`, of all without it, and the errors of unusable ones.

    One broken plugin does not affect the others.
    """
    classes: dict[str, type[Any]] = {}
    broken: dict[str, PluginError] = {}
    entries = installed_plugins() if names is None else _configured_plugins(names)
    for name, entry in entries.items():
        if names is not None and name not in names:
            continue
        try:
            classes[name] = plugin_class(entry)
        except PluginError as error:
            broken[name] = error
    return classes, broken


def describe(entry: "EntryPoint") -> PluginInfo:
    """The name, distribution, version and hooks of an installed plugin."""
    loaded = plugin_class(entry)
    hooks = tuple(name for name in hook_names() if hasattr(loaded, name))
    distribution = entry.dist
    return PluginInfo(
        name=entry.name,
        distribution=distribution.name if distribution else "?",
        version=distribution.version if distribution else "?",
        hooks=hooks,
    )


def hook_names() -> tuple[str, ...]:
    return tuple(name for name in vars(Hooks) if name.startswith("ustreamer_"))


class _PluginManager(pluggy.PluginManager):
    """Finds hooks among public names only. pluggy inspects every name, and most names of a class are special methods."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return None if name.startswith("_") else super().parse_hookimpl_opts(plugin, name)


def _new_manager() -> pluggy.PluginManager:
    manager = _PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    return manager


def _register(manager: pluggy.PluginManager, name: str, plugin: object) -> None:
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"plugin {name!r}: {error}") from error


def class_plugin_manager(loaded: Mapping[str, type[Any]]) -> pluggy.PluginManager:
    """For the hook that is called on the class: transports."""
    manager = _new_manager()
    _register(manager, "builtin", BuiltinTransports())
    for name, cls in loaded.items():
        _register(manager, name, cls)
    return manager


def transport_kinds(manager: pluggy.PluginManager) -> dict[str, TransportKind]:
    """All transport kinds. Raises PluginError if two plugins provide the same name."""
    kinds: dict[str, TransportKind] = {}
    for provided in manager.hook.ustreamer_transports():
        for name, kind in provided.items():
            if name in kinds:
                raise PluginError(f"transport {name!r} is offered by two plugins")
            kinds[name] = kind
    return kinds


def instance_plugin_manager(
    loaded: Mapping[str, type[Any]], configs: Mapping[str, msgspec.Struct], context: PluginContext
) -> pluggy.PluginManager:
    """One instance of each plugin, registered in the order of the configuration."""
    manager = _new_manager()
    for name, config in configs.items():
        _register(manager, name, _instantiate(name, loaded[name], config, context))
    return manager


def _instantiate(name: str, cls: type[Any], config: msgspec.Struct, context: PluginContext) -> object:
    try:
        return cls(config, context)
    except (TypeError, ValueError) as error:
        raise PluginError(f"plugin {name!r}: {error}") from error


def prepare_reconfigure(
    manager: pluggy.PluginManager, name: str, config: msgspec.Struct
) -> Callable[[], None]:
    """A function that applies a new section to a running plugin. Raises ValueError with the plugin's reason if it
    refuses.
    """
    plugin = manager.get_plugin(name)
    reconfigure = getattr(plugin, "reconfigure", None)
    if reconfigure is None:
        raise ValueError("needs a restart")
    apply: Callable[[], None] = reconfigure(config)
    return apply


def authorisation(manager: pluggy.PluginManager) -> Authorise | None:
    """The first reason of a plugin to deny; None if no plugin has the hook."""
    hook = manager.hook.ustreamer_authorise
    if not hook.get_hookimpls():
        return None

    def authorise(peer: Peer, attributes: UAttributes) -> UStatus | None:
        try:
            reasons: list[UStatus] = hook(peer=peer, attributes=attributes)
        except Exception as error:  # foreign code: what it cannot decide is denied
            log.exception("plugins.authorisation_failed", extra={**limited(peer.endpoint)})
            return UStatus(UCode.PERMISSION_DENIED, f"a plugin could not authorise it: {safe_str(error)}")
        return reasons[0] if reasons else None

    return authorise


def isolated(watch: SubscriptionWatch) -> SubscriptionWatch:
    """`watch` without its exceptions: the first one is logged."""
    failed = False

    def contained(subscription: Subscription, change: Change, /) -> None:
        nonlocal failed
        try:
            watch(subscription, change)
        except Exception:
            if not failed:
                log.exception("plugins.failed", extra={"plugin": plugin_name(watch)})
            failed = True

    return contained
