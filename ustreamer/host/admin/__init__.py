# SPDX-License-Identifier: Apache-2.0
"""Status and operations of a running streamer, for commands and for uProtocol clients.

In: admin requests from `<state_dir>/admin.sock`, and requests to the uEntity `//<authority>/4/1`. Out:
statistics, routes, tap lines and results of operations.

The admin socket serves the local command line. `UStreamerService` serves uProtocol clients. Both read the streamer
through `StatusProvider` (status.py). Neither runs on the message path; only a tap takes a note per verdict.

Read server.py first (requests, responses, the socket), then status.py (the result types), taps.py (`ustreamer tap`),
payload_decoding.py (readable payloads) and ustreamer_service.py.
"""
