# SPDX-License-Identifier: Apache-2.0
"""Metrics and health of a running streamer over HTTP, for Prometheus and for supervisors (`[observe]`).

In: the numbers that the streamer counts anyway (snapshot.py), and GET requests. Out: `/metrics` in OpenMetrics
text, `/healthz` and `/readyz` in JSON.

Only latency.py, which is off by default, counts messages, and no request takes a lock of the message path. Read snapshot.py first (what is read),
then metrics.py (its names for Prometheus), exposition.py (the text), health.py (the answers of the health checks),
http_server.py (the bounds of requests), page.py with page.html (the page for operators) and service.py (all of them together).
"""
