# SPDX-License-Identifier: Apache-2.0
"""The paths of `[observe]` except the page: /metrics, /healthz and /readyz of a streamer. Snapshots in, HTTP responses out."""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Final

import msgspec
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import CollectorRegistry

from ustreamer.core.base.clock import Clock
from ustreamer.host.config.observe import ObserveConfig
from ustreamer.host.observe.exposition import openmetrics_text
from ustreamer.host.observe.health import HealthReport, ThreadWatch, liveness, readiness
from ustreamer.host.observe.http_server import HttpPage, HttpResponse, HttpServer
from ustreamer.host.observe.metrics import metric_families
from ustreamer.host.observe.snapshot import MetricsSnapshot

JSON: Final = "application/json"
TakeSnapshot = Callable[[int], MetricsSnapshot]
"""The snapshot of a streamer, with this number of targets and subscriber queues."""


class ObserveService:
    """The metrics and the health of one streamer. `server` has the life cycle."""

    def __init__(
        self,
        config: ObserveConfig,
        take_snapshot: TakeSnapshot,
        clock: Clock,
        page: HttpPage | None = None,
        more_families: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._top = config.top
        self._take_snapshot = take_snapshot
        self._more_families = more_families
        self._monotonic_ns = clock.monotonic_ns
        self._watch = ThreadWatch()
        # Not the global registry: this process may have a second streamer.
        process = CollectorRegistry()
        self._collectors = (
            ProcessCollector(registry=process),
            PlatformCollector(registry=process),
            GCCollector(registry=process),
        )
        self._paths: dict[str, Callable[[], HttpResponse]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        self.server: Final = HttpServer(*config.address, self.respond, page)

    def respond(self, path: str) -> HttpResponse | None:
        """The response for a path; None for an unknown one."""
        handle = self._paths.get(path)
        return None if handle is None else handle()

    def families(self) -> Iterator[Metric]:
        """All metrics: of the streamer, then of the process."""
        snapshot = self._take_snapshot(self._top)
        self._hanging(snapshot)  # a health check then finds a thread that hangs since the last scrape
        yield from metric_families(snapshot)
        yield from self._more_families()
        for each in self._collectors:
            yield from each.collect()

    def _metrics(self) -> HttpResponse:
        return HttpResponse(HTTPStatus.OK, CONTENT_TYPE_LATEST, openmetrics_text(self.families()))

    def _healthz(self) -> HttpResponse:
        return _as_response(liveness(self._hanging(self._take_snapshot(0))))

    def _readyz(self) -> HttpResponse:
        snapshot = self._take_snapshot(0)
        return _as_response(readiness(snapshot, self._hanging(snapshot)))

    def _hanging(self, snapshot: MetricsSnapshot) -> list[str]:
        threads = ((each.name, thread) for each in snapshot.endpoints for thread in each.threads)
        return self._watch.hanging(threads, self._monotonic_ns())


def _as_response(report: HealthReport) -> HttpResponse:
    status = HTTPStatus.OK if report.is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return HttpResponse(status, JSON, msgspec.json.encode(report) + b"\n")
