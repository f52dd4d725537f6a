# SPDX-License-Identifier: Apache-2.0
"""The phases of an Offer or a Find.

    phase           enters                    sends                                         leaves
    DOWN            at first, link lost       nothing                                       link up
    INITIAL_WAIT    link up, service lost     nothing; answers no Find                      after a random delay
    LISTENING       then, for an Offer with   a Find: detects competing offers              after the answer delay
                    peer discovery enabled
    STANDBY         a competing offer         nothing                                       last one ends: INITIAL_WAIT
    REPETITION      first message             after base, 2 base, 4 base ...                after repetitions_max
    MAIN            then                      Offers every cyclic_offer_delay; no Finds     link lost

An Offer of a wanted service moves its Find to MAIN. A StopOffer leaves the Find in MAIN, because a server that
announces its stop also announces its start. A reboot or an expired ttl restarts the Find.
"""

from enum import StrEnum

from ustreamer.transports.someip.sd.config import SdTimings


# [impl->SD-68]
class Phase(StrEnum):
    DOWN = "down"
    INITIAL_WAIT = "initial_wait"
    LISTENING = "listening"
    STANDBY = "standby"
    REPETITION = "repetition"
    MAIN = "main"


# [impl->SD-66, SD-67, SD-76, SD-73, SD-74, SD-75]
def next_phase(sent: int, timings: SdTimings) -> tuple[Phase, int]:
    """Return the phase after `sent` messages (1 or more) and its pause in ms; in MAIN the pause is the cyclic delay."""
    if sent <= timings.repetitions_max:
        return Phase.REPETITION, timings.repetitions_base_delay_ms << (sent - 1)
    return Phase.MAIN, timings.cyclic_offer_delay_ms
