# SPDX-License-Identifier: Apache-2.0
"""The plugin of `[plugins.recorder]`: hooks of the streamer in, notes for the writer out."""

from typing import Final

import msgspec

from ustreamer import __version__
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ports import Filter, Tap
from ustreamer.core.egress.dead_letter import dead_letter_topic
from ustreamer.core.routing.subscriptions import SubscriptionWatch
from ustreamer.hooks import PluginContext, StreamerSettings, hookimpl
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.layout import MAX_STRING
from ustreamer_recorder.note_queue import NoteQueue
from ustreamer_recorder.recorder import Recorder

_JOIN_S: Final = 5.0


class RecorderPlugin:
    """Observes every verdict and changes none. Constructing it touches no file."""

    Config = RecorderConfig

    def __init__(self, config: RecorderConfig, context: PluginContext) -> None:
        sampler = config.sampler()
        self._is_sampling = sampler is not None
        self._release = config.release or __version__
        self._note_queue = NoteQueue(
            config.buffer_rows,
            context.clock.monotonic_ns,
            dead_letter_topic(context.authority),
            config.payload_bytes if config.payloads else None,
            sampler,
        )
        directory = context.state_dir / config.directory
        if directory.exists() and not directory.is_dir():
            raise ValueError(f"directory: {directory} is a file: expected a directory")
        self._recorder = Recorder(
            config,
            directory,
            context.authority,
            context.clock,
            self._note_queue,
            context.ledger,
            context.stores,
        )
        self._is_open = False

    @hookimpl
    def ustreamer_configured(self, settings: StreamerSettings) -> None:
        self._note_queue.on_configured(_config_text(settings, self._release, with_types=self._is_sampling))
        if not self._is_open:
            self._recorder.open()
            self._is_open = True

    @hookimpl
    def ustreamer_taps(self, endpoint: str) -> Tap:
        return self._note_queue.tap(endpoint)

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        """No filter; the call marks the time when a limit takes effect."""
        self._note_queue.on_rate_change(delivery)
        return None

    @hookimpl
    def ustreamer_subscription_watch(self) -> SubscriptionWatch:
        return self._note_queue.on_subscription_change

    @hookimpl
    def ustreamer_stopped(self) -> None:
        self._recorder.close(_JOIN_S)


def _config_text(settings: StreamerSettings, release: str, *, with_types: bool) -> str:
    """The configuration that readers of a recording need: the release, limits of egress queues, the throttle's settings.

    `with_types`: also the types of payloads, unless the text then exceeds MAX_STRING.
    """
    throttle = settings.plugins.get("throttle")
    recorded = {"egress": dict(settings.egress), "release": release, "throttle": throttle}
    text = msgspec.json.encode(recorded, order="deterministic")
    if with_types and "payloads" in settings.plugins:
        typed = msgspec.json.encode(
            {**recorded, "payloads": settings.plugins["payloads"]}, order="deterministic"
        )
        text = typed if len(typed) <= MAX_STRING else text
    return text.decode()
