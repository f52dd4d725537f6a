# SPDX-License-Identifier: Apache-2.0
"""The plugin: what `[plugins.usubscription]` switches on."""

import argparse
from collections.abc import Sequence

from ustreamer.core.subscriptions import SubscriptionDirectory
from ustreamer.hookspecs import PluginContext, Service, hookimpl
from ustreamer_usubscription.commands import add_subscriptions
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.service import UsubscriptionService


class UsubscriptionPlugin:
    """Hosts core.usubscription and lets the core route by what was subscribed.

    Construction touches nothing; the service's `start` opens the store.
    """

    Config = UsubscriptionConfig

    def __init__(self, config: UsubscriptionConfig, context: PluginContext) -> None:
        self.directory = Directory()
        self.service = UsubscriptionService(config, context, self.directory)

    @staticmethod
    @hookimpl
    def ustreamer_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        add_subscriptions(commands)

    @hookimpl
    def ustreamer_services(self) -> Sequence[Service]:
        return [self.service]

    @hookimpl
    def ustreamer_subscription_directory(self) -> SubscriptionDirectory:
        return self.directory

    @hookimpl
    def ustreamer_started(self) -> None:
        self.service.endpoints_up()
