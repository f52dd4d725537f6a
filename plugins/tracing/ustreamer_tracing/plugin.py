# SPDX-License-Identifier: Apache-2.0
"""The plugin of `[plugins.tracing]`: taps of the streamer in, spans for a collector out."""

from typing import TYPE_CHECKING, Final

from ustreamer.core.delivery.ports import Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer_tracing.config import TracingConfig
from ustreamer_tracing.span_queue import SpanQueue

if TYPE_CHECKING:
    from ustreamer_tracing.exporter import SpanExporter

_JOIN_S: Final = 5.0


class TracingPlugin:
    """Observes the verdicts on sampled messages and changes none. Constructing it opens nothing."""

    Config = TracingConfig

    def __init__(self, config: TracingConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context
        self._queue = SpanQueue(config.queue_spans, context.clock.monotonic_ns)
        self._exporter: SpanExporter | None = None

    @hookimpl
    def ustreamer_taps(self, endpoint: str) -> Tap:
        return self._queue.tap(endpoint)

    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        from ustreamer_tracing.exporter import SpanExporter  # 20 ms; `check` does not need it

        self._exporter = SpanExporter(self._config, self._context.authority, self._context.clock, self._queue)
        self._exporter.start()

    @hookimpl
    def ustreamer_stopped(self) -> None:
        if self._exporter is not None:
            self._exporter.close(_JOIN_S)
