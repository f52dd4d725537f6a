# SPDX-License-Identifier: Apache-2.0
"""`ustreamer config show | schema | access-control`.

The configuration in force, key by key; the JSON Schema of the file for editors; the access control for a Zenoh router.
"""

import json
from pathlib import Path

import msgspec

from ustreamer.host.config.config import read
from ustreamer.host.config.effective import effective_settings
from ustreamer.host.config.json_schema import json_schema
from ustreamer.host.runtime import plugins, process
from ustreamer.uprotocol.ustatus import invalid_argument


def show_config(path: Path, *, origin: bool, as_json: bool) -> int:
    """Print every key of a valid configuration. Raises ConfigError or PluginError."""
    document = read(path)
    settings = effective_settings(document, process.load_document(document).config)
    if as_json:
        print(json.dumps(msgspec.to_builtins(settings), indent=2))
        return 0
    for each in settings:
        line = f"{each.path} = {each.value}"
        print(f"{line:<60}  # {each.origin}" if origin else line)
    return 0


def print_access_control(path: Path, endpoint: str, gateway: str) -> int:
    """Print a Zenoh configuration with the access control that the `identities` of an endpoint stand for."""
    from ustreamer.transports.zenoh.access_control import router_access_control
    from ustreamer.transports.zenoh.config import ZenohEndpoint

    section = process.load_document(read(path)).config.endpoints.get(endpoint)
    if not isinstance(section, ZenohEndpoint) or not section.identities:
        raise invalid_argument(f"{path}: endpoint {endpoint!r}: expected a Zenoh endpoint with identities")
    control = router_access_control(section.identities, gateway)
    print(json.dumps({"access_control": control}, indent=2))
    return 0


def print_schema() -> int:
    """Print the JSON Schema of a configuration file, with the sections of all installed plugins."""
    classes, _ = plugins.load_plugin_classes()
    kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
    print(json.dumps(json_schema(kinds, {name: each.Config for name, each in classes.items()}), indent=2))
    return 0
