# SPDX-License-Identifier: Apache-2.0
"""Subscribe and call: `python use.py tcp/127.0.0.1:7448 cloud //hpc.vin1/A001/1/0`. The last is the provider."""

import asyncio
import sys

from up_python_zenoh import UpPythonTransport, client_config
from uprotocol.client.usubscription.v3.inmemoryusubcriptionclient import InMemoryUSubscriptionClient
from uprotocol.communication.inmemoryrpcclient import InMemoryRpcClient
from uprotocol.communication.upayload import UPayload
from uprotocol.transport.ulistener import UListener
from uprotocol.uri.serializer.uriserializer import UriSerializer
from uprotocol.v1.uattributes_pb2 import UPayloadFormat
from uprotocol.v1.umessage_pb2 import UMessage
from uprotocol.v1.uri_pb2 import UUri

GATEWAY = "hpc.vin1"


class First(UListener):
    """The payload of the first message."""

    def __init__(self) -> None:
        self.payload: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def on_receive(self, umsg: UMessage) -> None:
        if not self.payload.done():
            self.payload.set_result(umsg.payload)


async def main(locator: str, authority: str, provider_text: str) -> None:
    me = UUri(authority_name=authority, ue_id=0xB001, ue_version_major=1)
    event, notification, method = (UriSerializer.deserialize(provider_text) for _ in range(3))
    event.resource_id, notification.resource_id, method.resource_id = 0x8001, 0x8002, 1
    async with await UpPythonTransport.open(me, client_config(locator)) as transport:
        rpc = InMemoryRpcClient(transport)
        usubscription = InMemoryUSubscriptionClient(transport, rpc)
        # up-python asks the uSubscription of its own authority. Here it is that of the gateway.
        for uri in (
            usubscription.subscribe_uri,
            usubscription.unsubscribe_uri,
            usubscription.notification_uri,
        ):
            uri.authority_name = GATEWAY
        first_event, first_notification = First(), First()
        await usubscription.subscribe(event, first_event)
        print("event:", (await asyncio.wait_for(first_event.payload, 10)).decode(), flush=True)
        await transport.register_listener(notification, first_notification, me)
        answer = await rpc.invoke_method(method, UPayload(b"warm", UPayloadFormat.UPAYLOAD_FORMAT_TEXT))
        print("answer:", answer.data.decode(), flush=True)
        if event.authority_name != "chassis":  # SOME/IP has no notifications
            print(
                "notification:", (await asyncio.wait_for(first_notification.payload, 10)).decode(), flush=True
            )
        await usubscription.unsubscribe(event, first_event)


asyncio.run(main(*sys.argv[1:]))
