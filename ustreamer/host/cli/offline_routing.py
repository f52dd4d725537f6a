# SPDX-License-Identifier: Apache-2.0
"""The routing of a configuration file for commands of plugins. Nothing is opened or changed."""

from pathlib import Path

from ustreamer.core.routing.subscriptions import SubscriptionDirectory
from ustreamer.hooks import OfflineRouting
from ustreamer.host.runtime import process
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.uprotocol.ustatus import UStatusError


def load_routing(path: Path, directory: SubscriptionDirectory) -> OfflineRouting:
    """See `ustreamer.hooks.LoadRouting`. Raises ConfigError, PluginError."""
    loaded = process.load(path)
    try:
        return loaded.streamer().offline_routing(directory)
    except (UStatusError, PluginError, ValueError) as error:
        raise PluginError(f"{path}: {error}") from error
