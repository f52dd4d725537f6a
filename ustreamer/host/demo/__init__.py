# SPDX-License-Identifier: Apache-2.0
"""`ustreamer demo`: a small vehicle on real sockets and real Zenoh sessions, with a streamer in the middle."""
