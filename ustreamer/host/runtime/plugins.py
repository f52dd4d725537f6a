# SPDX-License-Identifier: Apache-2.0
"""Finds, imports, creates and registers plugins."""

import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import pluggy

from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS, plugin_name, safe_str
from ustreamer.core.routing.identity import Authorise, Peer
from ustreamer.core.routing.subscriptions import Change, Subscription, SubscriptionWatch
from ustreamer.hooks import PROJECT, Hooks, HostedService, PluginContext
from ustreamer.host.runtime.entry_points import PLUGINS, PathEntryPoint, path_entry_points
from ustreamer.transport_port import EndpointContext, EndpointTransport, TransportKind
from ustreamer.transports import BuiltinTransports
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger("ustreamer.streamer")

AnyEntryPoint: TypeAlias = "EntryPoint | PathEntryPoint"
E = TypeVar("E", bound="EntryPoint | PathEntryPoint")

CLASS_HOOKS: Final = ("ustreamer_transports",)
_ABSTRACT: Final = re.compile(
    r"Can't instantiate abstract class (\w+) (?:with|.* for) abstract methods? (.*)"
)
"""The text of a TypeError of Python 3.11 and of 3.12."""


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
    """All transport kinds. Raises PluginError if two plugins provide the same name, or one an invalid kind.

    An error of a factory is a PluginError that names its plugin.
    """
    kinds: dict[str, TransportKind] = {}
    for implementation in reversed(manager.hook.ustreamer_transports.get_hookimpls()):
        plugin = implementation.plugin_name
        for name, kind in _provided_kinds(plugin, implementation.function).items():
            if name in kinds:
                raise PluginError(f"transport {name!r} is offered by two plugins")
            factory = _TransportFactory(plugin, name, kind.factory)
            kinds[name] = msgspec.structs.replace(kind, factory=factory)
    return kinds


def _provided_kinds(plugin: str, hook: Callable[[], object]) -> Mapping[str, TransportKind]:
    """What a plugin returns from `ustreamer_transports`. Raises PluginError unless it has the type of the hook."""
    try:
        provided = hook()
    except Exception as error:  # foreign code
        raise PluginError(f"plugin {plugin!r}: ustreamer_transports raised {safe_str(error)}") from error
    if provided is None:
        return {}
    if not isinstance(provided, Mapping) or not all(
        isinstance(kind, TransportKind) for kind in provided.values()
    ):
        raise PluginError(
            f"plugin {plugin!r}: ustreamer_transports returned {provided!r}; "
            "expected a TransportKind by the name of each transport"
        )
    return provided


def holds_subscriptions(plugin: object) -> bool:
    """Whether a plugin, or its class, provides a subscription directory."""
    return hasattr(plugin, "ustreamer_subscription_directory")


def plugin_statistics(manager: pluggy.PluginManager) -> dict[str, dict[str, int]]:
    """The counters of each plugin that has a method `statistics`. Those of a plugin that fails are left out."""
    found = dict[str, dict[str, int]]()
    for name, plugin in manager.list_name_plugin():
        read = getattr(plugin, "statistics", None)
        if read is not None:
            with suppress(*FOREIGN_ERRORS):
                found[name] = dict(read())
    return found


class _TransportFactory(msgspec.Struct, frozen=True):
    """The factory of a transport, with errors that name its plugin. Raises what a valid factory raises."""

    plugin: str
    transport: str
    make: Callable[[Any, EndpointContext], EndpointTransport]

    def __call__(self, config: Any, context: EndpointContext) -> EndpointTransport:
        where = f"plugin {self.plugin!r}: transport {self.transport!r}"
        try:
            made: object = self.make(config, context)
        except (UStatusError, PluginError):
            raise
        except Exception as error:  # foreign code
            reason = missing_methods(error) or f"its factory raised {safe_str(error)}"
            raise PluginError(f"{where}, endpoint {context.name!r}: {reason}") from error
        if not isinstance(made, EndpointTransport):
            raise PluginError(
                f"{where}, endpoint {context.name!r}: its factory made a {type(made).__name__}, "
                "which is no subclass of ustreamer.transport_port.EndpointTransport"
            )
        return made


def missing_methods(error: Exception) -> str:
    """`class Link lacks the methods close and open`, for an error of a class with abstract methods; else ""."""
    found = _ABSTRACT.search(str(error)) if isinstance(error, TypeError) else None
    if found is None:
        return ""
    names = re.findall(r"\w+", found[2])
    text = (
        f"the methods {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"the method {names[0]}"
    )
    return f"class {found[1]} lacks {text}"


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
        raise PluginError(f"plugin {name!r}: {missing_methods(error) or error}") from error
    except (UStatusError, PluginError):
        raise
    except Exception as error:  # foreign code
        raise PluginError(
            f"plugin {name!r}: {cls.__name__}(config, context) raised {safe_str(error)}"
        ) from error


def hosted_services(manager: pluggy.PluginManager) -> list[HostedService]:
    """The services of all plugins. Raises PluginError for one without the methods of `HostedService`."""
    services: list[HostedService] = []
    for implementation in reversed(manager.hook.ustreamer_services.get_hookimpls()):
        found: Any = implementation.function()
        for service in found or ():
            lacks = [each for each in ("entities", "start", "stop") if not hasattr(service, each)]
            if lacks:
                raise PluginError(
                    f"plugin {implementation.plugin_name!r}: "
                    f"service {type(service).__name__} lacks {', '.join(lacks)}"
                )
            services.append(service)
    return services


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
        except FOREIGN_ERRORS as error:  # foreign code: what it cannot decide is denied
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
        except FOREIGN_ERRORS:
            if not failed:
                log.exception("plugins.failed", extra={"plugin": plugin_name(watch)})
            failed = True

    return contained
