# SPDX-License-Identifier: Apache-2.0
"""What a sample of vsomeip does, done by the library someip, so that the play is known to be playable where there is no vsomeip.

    python -m tests.e2e.vsomeip_understudy SAMPLE

with VSOMEIP_CONFIGURATION in the environment. It runs until it is killed.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from someip.header import SOMEIPHeader

from tests.e2e import wire
from tests.e2e.ecu import GROUP, Ecu, Seen
from tests.e2e.peers import reply
from tests.e2e.vsomeip import EVENT, EVENTGROUP, INSTANCE, METHOD, SERVES, SERVICE

_BEAT_S: Final = 0.1
_FOREVER_S: Final = 1e6


def _answer(asked: SOMEIPHeader) -> bytes:
    return reply(asked, payload=b"\7" + asked.payload)


def _offer(ecu: Ecu) -> None:
    """As response-sample and notify-sample, which is told here when somebody has subscribed."""
    ecu.offer(SERVICE, EVENTGROUP, instance=INSTANCE, major=0)
    event = wire.someip(SERVICE, EVENT, wire.SOMEIP_NOTIFICATION, b"\1", interface_version=0)
    while True:
        place = ecu.places.get(Seen("subscribed", SERVICE, EVENTGROUP))
        if place:
            ecu.data.send_to(event, place)
        time.sleep(_BEAT_S)


def _want(ecu: Ecu) -> None:
    """As request-sample and subscribe-sample."""
    ecu.find(SERVICE, instance=INSTANCE, major=0)
    found = ecu.seen.one(lambda seen: seen == Seen("offered", SERVICE))
    print(f"Service [{SERVICE:04x}.{INSTANCE:04x}] is available.", flush=True)
    ecu.subscribe(SERVICE, EVENTGROUP, instance=INSTANCE, major=0)
    call = wire.someip(SERVICE, METHOD, wire.SOMEIP_REQUEST, b"?", client=1, interface_version=0)
    ecu.data.send_to(call, ecu.places[found])
    heard = 0
    while True:
        frames = ecu.data.inbox.wait(count=heard + 1, within=_FOREVER_S)
        for frame in frames[heard:]:
            answers = frame.head.message_type.value == wire.SOMEIP_RESPONSE
            print(f"Received a {'response' if answers else 'notification'}", flush=True)
        heard = len(frames)


def main(sample: str) -> None:
    configured = json.loads(Path(os.environ["VSOMEIP_CONFIGURATION"]).read_text(encoding="utf-8"))
    assert configured["service-discovery"]["multicast"] == GROUP
    ecu = Ecu(configured["unicast"], int(configured["service-discovery"]["port"]), _answer)
    if sample in SERVES:
        _offer(ecu)
    else:
        _want(ecu)


if __name__ == "__main__":
    main(sys.argv[1])
