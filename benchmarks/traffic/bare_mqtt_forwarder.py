# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.traffic.bare_mqtt_forwarder FROM_PORT TO_PORT FILTER`: publishes each packet at another broker.

It uses the client library of the plugin as its documentation shows, and checks nothing.
"""

import signal
import sys
import threading
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion


def main(from_port: int, to_port: int, topic_filter: str) -> None:
    source, target = (
        Client(CallbackAPIVersion.VERSION2, f"bare-{name}", protocol=MQTTProtocolVersion.MQTTv5)
        for name in ("source", "target")
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def forward(client: Client, userdata: Any, message: MQTTMessage) -> None:
        target.publish(message.topic, message.payload, 1, properties=message.properties)

    source.on_message = forward
    source.on_subscribe = lambda *_: print("READY", flush=True)
    target.connect("127.0.0.1", to_port)
    target.loop_start()
    source.connect("127.0.0.1", from_port)
    source.loop_start()
    source.subscribe(topic_filter, 1)
    stop.wait()
    for client in (source, target):
        client.disconnect()
        client.loop_stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
