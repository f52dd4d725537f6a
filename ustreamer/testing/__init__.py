# SPDX-License-Identifier: Apache-2.0
"""Tests for those who extend the streamer. It needs pytest: `pip install 'ustreamer[testing]'`.

    from ustreamer.testing.contract import Pair, TransportContract

    class TestMyTransport(TransportContract):
        @contextmanager
        def make_pair(self) -> Iterator[Pair]:
            yield Pair(MyTransport(...at ALPHA...), MyTransport(...at BETA...))

contract.py   the contract of a transport: subclass it
messages.py   addresses of the authorities ALPHA and BETA, and messages between them
mailbox.py    listeners that record messages
waiting.py    `wait_until`: a condition with a deadline

Nothing in the streamer imports this package.
"""
