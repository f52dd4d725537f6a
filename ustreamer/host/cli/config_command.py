# SPDX-License-Identifier: Apache-2.0
"""`ustreamer config show | schema`: the configuration in force, key by key; the JSON Schema of the file for editors."""

import json
from pathlib import Path

import msgspec

from ustreamer.host.config.config import read
from ustreamer.host.config.effective import effective_settings
from ustreamer.host.config.json_schema import json_schema
from ustreamer.host.runtime import plugins, process


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


def print_schema() -> int:
    """Print the JSON Schema of a configuration file, with the sections of all installed plugins."""
    classes, _ = plugins.load_plugin_classes()
    kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
    print(json.dumps(json_schema(kinds, {name: each.Config for name, each in classes.items()}), indent=2))
    return 0
