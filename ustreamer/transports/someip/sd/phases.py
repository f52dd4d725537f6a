# SPDX-License-Identifier: Apache-2.0
"""The phases that an Offer or a Find goes through.

    phase           enters                    sends                                         leaves
    DOWN            at first, link lost       nothing                                       link up
    INITIAL_WAIT    link up, service lost     nothing; answers no Find                      after a random delay
    LISTENING       then, of an Offer where   a Find: does another streamer offer it?       after a while
                    streamers look for others
    STANDBY         one does                  nothing                                       when none does, to INITIAL_WAIT
    REPETITION      first message             after base, 2 base, 4 base ...                after repetitions_max
    MAIN            then                      Offers every cyclic_offer_delay; no Finds     link lost

An Offer of a wanted service takes its Find to MAIN, and a StopOffer leaves it there: who says that it stops will say when
it starts. After a reboot, or when the ttl of an Offer is over, the Find starts anew.
"""

from enum import StrEnum

from ustreamer.transports.someip.sd.settings import SdTimings


class Phase(StrEnum):
    DOWN = "down"
    INITIAL_WAIT = "initial_wait"
    LISTENING = "listening"
    STANDBY = "standby"
    REPETITION = "repetition"
    MAIN = "main"


def next_phase(sent: int, timings: SdTimings) -> tuple[Phase, int]:
    """The phase once `sent` messages (1 or more) are out, and its pause in ms; in MAIN that is the cyclic delay."""
    if sent <= timings.repetitions_max:
        return Phase.REPETITION, timings.repetitions_base_delay_ms << (sent - 1)
    return Phase.MAIN, timings.cyclic_offer_delay_ms
