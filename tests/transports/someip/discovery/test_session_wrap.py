# SPDX-License-Identifier: Apache-2.0
"""Our own session numbers come to their end and begin again, on real sockets, before a judge that is not ours."""

from contextlib import ExitStack
from typing import Final

from someip.sd import _SessionStorage

from tests.transports.someip.discovery.test_sd_driver import DOORS, WITHIN_S, Bench
from ustreamer.transports.someip.protocol.codec import MAX_SESSION, decode
from ustreamer.transports.someip.sd.codec import (
    EntryType,
    SdMessage,
    ServiceEntry,
    decode_sd_message,
    encode_sd_message,
)

AT_ONCE: Final = 32
"""Finds on their way at a time: so few fit the smallest buffer of a socket, and so many keep both sides busy."""
BEHIND: Final = 100


def test_when_our_numbers_wrap_the_flag_goes_and_nobody_takes_it_for_a_reboot() -> None:
    """Each Find by unicast has an Offer for its answer, with a number of its own."""
    judge, total = _SessionStorage(), MAX_SESSION + BEHIND
    numbers: list[tuple[int, bool]] = []
    with ExitStack() as stack:
        limits = {"peer_entries_per_s": 1_000_000_000, "peer_entries_burst": 1_000_000_000}
        bench = Bench(stack, limits=limits)
        ecu = bench.ecu()
        own, to = ecu._own, ("127.0.0.1", bench.sd_port)
        find = (ServiceEntry(EntryType.FIND, DOORS, 1, 1, 0, 3),)
        ecu.expect_entry(lambda each: each.type == EntryType.OFFER)  # in the initial wait no Find is answered
        own.settimeout(WITHIN_S)
        asked = 0
        while len(numbers) < total:
            while asked < total and asked - len(numbers) < AT_ONCE:
                session, flag = asked % MAX_SESSION + 1, asked < MAX_SESSION
                own.sendto(encode_sd_message(SdMessage(find, reboot=flag), session), to)
                asked += 1
            message, _ = decode(own.recv(2_048))
            said, _ = decode_sd_message(message)
            assert [each.type for each in said.entries] == [EntryType.OFFER]
            numbers.append((message.session, said.reboot))
            assert not judge.check_received(to, False, said.reboot, message.session), numbers[-2:]
        assert bench.count("sd_reboots") == 0
    first = [(number, True) for number in range(1, MAX_SESSION + 1)]
    assert numbers == [*first, *((number, False) for number in range(1, BEHIND + 1))]
