# SPDX-License-Identifier: Apache-2.0
"""MQTT 5 for uStreamer: one connection to a broker per endpoint, as up-spec's up-l1/mqtt_5.adoc maps messages.

In: PUBLISH packets of the broker, and uProtocol messages that the dispatcher sends. Out: the same in the other direction.

    config.py        the section of an endpoint
    topics.py        topic names and filters: in the vehicle, and between devices
    properties.py    attributes of a message to and from the properties of a packet
    connection.py    the thread of the client library: connect, retry, read, write
    unconfirmed.py   sent messages without an acknowledgement of the broker, and the window for them
    receiver.py      the thread that decodes messages, calls listeners and acknowledges
    transport.py     all of it as an `EndpointTransport`

Read topics.py and properties.py first for the mapping, transport.py for the way into the streamer.
"""
