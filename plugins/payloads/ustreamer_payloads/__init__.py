# SPDX-License-Identifier: Apache-2.0
"""Payloads: decodes the bytes of a topic by a description in the configuration, for taps and dashboards.

In: `[plugins.payloads]`, then payloads. Out: named values, or an error with the offset and the name of the member.
Routing never decodes a payload.

    config.py      shapes as the configuration writes them
    compiler.py    shapes to codecs, once at the start
    codec.py       the interface of a codec; scalars, texts, arrays, records, unions, tagged: one kind each

Read config.py first, then compiler.py and codec.py.
"""
