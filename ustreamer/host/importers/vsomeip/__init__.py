# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import vsomeip`: converts the JSON configuration of a vsomeip host to a SOME/IP endpoint.

In: the parsed JSON, and options for the values that a vsomeip file lacks (authorities, versions). Out: a
`SomeipEndpoint` that `ustreamer check` accepts, and one line for each setting that could not be converted.

Read importer.py first: it converts services and events, and calls the others. service_discovery.py, tcp.py and tp.py
convert one section each. keys.py lists the keys without a counterpart, with the reason.
"""
