# SPDX-License-Identifier: Apache-2.0
"""The behaviour of vsomeip's samples on the library someip, to run the scenarios without vsomeip.

    python -m tests.e2e.someip.vsomeip_stand_in SAMPLE

with VSOMEIP_CONFIGURATION in the environment. It runs until it is killed.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from someip.header import SOMEIPHeader

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import reply
from tests.e2e.rigs.sd_ecu import SD_GROUP, SdEcu, SdNotification
from tests.e2e.someip.vsomeip_samples import EVENT, EVENTGROUP, INSTANCE, METHOD, SERVER_SAMPLES, SERVICE

_PERIOD_S: Final = 0.1
_FOREVER_S: Final = 1e6


def _answer(request: SOMEIPHeader) -> bytes:
    return reply(request, payload=b"\7" + request.payload)


def _run_server(ecu: SdEcu) -> None:
    """As response-sample and notify-sample, with a line for each Subscribe."""
    ecu.offer(SERVICE, EVENTGROUP, instance=INSTANCE, major=0)
    event = wire.someip(SERVICE, EVENT, wire.SOMEIP_NOTIFICATION, b"\1", interface_version=0)
    while True:
        endpoint = ecu.endpoints.get(SdNotification("subscribed", SERVICE, EVENTGROUP))
        if endpoint:
            ecu.data_socket.send_to(event, endpoint)
        time.sleep(_PERIOD_S)


def _run_client(ecu: SdEcu) -> None:
    """As request-sample and subscribe-sample."""
    ecu.find(SERVICE, instance=INSTANCE, major=0)
    found = ecu.notifications.wait_one(lambda seen: seen == SdNotification("offered", SERVICE))
    print(f"Service [{SERVICE:04x}.{INSTANCE:04x}] is available.", flush=True)
    ecu.subscribe(SERVICE, EVENTGROUP, instance=INSTANCE, major=0)
    call = wire.someip(SERVICE, METHOD, wire.SOMEIP_REQUEST, b"?", client=1, interface_version=0)
    ecu.data_socket.send_to(call, ecu.endpoints[found])
    handled = 0
    while True:
        frames = ecu.data_socket.inbox.wait_count(count=handled + 1, within=_FOREVER_S)
        for frame in frames[handled:]:
            answers = frame.head.message_type.value == wire.SOMEIP_RESPONSE
            print(f"Received a {'response' if answers else 'notification'}", flush=True)
        handled = len(frames)


def main(sample: str) -> None:
    configured = json.loads(Path(os.environ["VSOMEIP_CONFIGURATION"]).read_text(encoding="utf-8"))
    assert configured["service-discovery"]["multicast"] == SD_GROUP
    ecu = SdEcu(configured["unicast"], int(configured["service-discovery"]["port"]), _answer)
    if sample in SERVER_SAMPLES:
        _run_server(ecu)
    else:
        _run_client(ecu)


if __name__ == "__main__":
    main(sys.argv[1])
