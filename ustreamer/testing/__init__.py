# SPDX-License-Identifier: Apache-2.0
"""Tests for those who extend the streamer. It needs pytest: the extra `testing`.

    from ustreamer.testing.contract import Pair, TransportContract

    class TestMyTransport(TransportContract):
        @contextmanager
        def make_pair(self) -> Iterator[Pair]:
            yield Pair(MyTransport(...at ALPHA...), MyTransport(...at BETA...))

contract.py           the contract of a transport: subclass it
endpoint_contract.py  the contract of a plugin that provides a kind of transport, and of its section
durable_contract.py   the contract of a transport that keeps messages for durable endpoints
peer_contract.py      the contract of a transport on whose network other streamers can be
bench.py              streamers, uEntities, Zenoh nodes and SOME/IP ECUs: the fixture `streamer_bench`
virtual_time.py       a plugin alone, in a time that a test moves: the fixture `virtual_time`
entity.py             a uEntity on any transport
ledger.py             `assert_accounted`: every message that came in has a verdict
messages.py           addresses of the authorities ALPHA and BETA, and messages between them
mailbox.py            listeners that record messages
waiting.py            `wait_until`: a condition with a deadline

The fixtures are those of plugin.py, which every run of pytest loads. Nothing in the streamer imports this package.
"""
