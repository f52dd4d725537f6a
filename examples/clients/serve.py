# SPDX-License-Identifier: Apache-2.0
"""Publish, answer calls, notify each caller: `python serve.py tcp/127.0.0.1:7447 hpc.vin1`, until Ctrl-C."""

import asyncio
import sys
from contextlib import suppress

from up_python_zenoh import UpPythonTransport, client_config
from uprotocol.communication.requesthandler import RequestHandler
from uprotocol.communication.uclient import UClient
from uprotocol.communication.upayload import UPayload
from uprotocol.v1.uattributes_pb2 import UPayloadFormat
from uprotocol.v1.umessage_pb2 import UMessage
from uprotocol.v1.uri_pb2 import UUri

TEXT = UPayloadFormat.UPAYLOAD_FORMAT_TEXT


class Upper(RequestHandler):
    """Answers with the same text in capital letters, and notifies the caller."""

    def __init__(self, client: UClient, topic: UUri) -> None:
        self.client = client
        self.topic = topic
        self.notifying: set[asyncio.Task[object]] = set()

    def handle_request(self, message: UMessage) -> UPayload:
        notifying = self.client.notify(
            self.topic, message.attributes.source, payload=UPayload(b"called", TEXT)
        )
        task = asyncio.get_running_loop().create_task(notifying)
        self.notifying.add(task)
        task.add_done_callback(self.notifying.discard)
        return UPayload(message.payload.upper(), TEXT)


async def main(locator: str, authority: str) -> None:
    me, event, notification, method = (
        UUri(authority_name=authority, ue_id=0xA001, ue_version_major=1, resource_id=resource)
        for resource in (0, 0x8001, 0x8002, 1)
    )
    async with await UpPythonTransport.open(me, client_config(locator)) as transport:
        client = UClient(transport)
        await client.register_request_handler(method, Upper(client, notification))
        print("serving", flush=True)
        while True:
            await client.publish(event, payload=UPayload(b"21.5", TEXT))
            await asyncio.sleep(0.1)


with suppress(KeyboardInterrupt):
    asyncio.run(main(*sys.argv[1:]))
