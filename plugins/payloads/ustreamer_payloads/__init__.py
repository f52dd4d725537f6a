# SPDX-License-Identifier: Apache-2.0
"""Payloads: decodes the payloads of a topic for taps and dashboards, by a description in the configuration.

In: the section `[plugins.payloads]`, then payloads. Out: named values, or an error with the offset and the
member name. Routing never decodes a payload.

    config.py      the types of the configuration section (shapes)
    compiler.py    compiles shapes to codecs, once at the start
    codec.py       the interface of a codec; one module per kind: scalars, texts, arrays, records, unions, tagged

Read config.py first, then compiler.py and codec.py.
"""
