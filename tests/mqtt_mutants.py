# SPDX-License-Identifier: Apache-2.0
"""Copies of the plugin with one mistake each, under the contracts of transports. Run by plugins/mqtt/tests/test_mutations.py."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.durable_contract import DurableContract
from ustreamer.testing.messages import ALPHA, BETA
from ustreamer.testing.pair import PairContract
from ustreamer.transport_port import EndpointContext, EndpointTransport

PACKAGE: Final = "ustreamer_mqtt"
SOURCE: Final = Path(__file__).parents[1] / "plugins/mqtt" / PACKAGE
BROKER: Final = "MQTT_MUTANTS_BROKER"
BROKER_PID: Final = "MQTT_MUTANTS_BROKER_PID"
"""The variables of the environment with the URL and the process of the broker."""
_numbers = count()


class Mutation(NamedTuple):
    """`old` is replaced by `new` in `file`; `test` is the test of the contract that finds it."""

    file: str
    old: str
    new: str
    test: str


KEPT: Final = "test_what_may_not_have_arrived_is_kept_until_it_has"
UNCHANGED: Final = "test_every_message_arrives_unchanged"
MUTATIONS: Final[Mapping[str, Mutation]] = {
    # --- encoder.py, topics.py, properties.py: the mapping
    "KeepsTheSinkOfAPublication": Mutation(
        "encoder.py",
        "            sink = None\n",
        "            pass\n",
        "test_the_sink_that_a_streamer_adds_to_a_publication_is_not_transmitted",
    ),
    "KeepsAnEmptyAuthority": Mutation(
        "encoder.py",
        "source, sink = source.with_authority(self._authority), sink and",
        "source, sink = source, sink and",
        "test_an_empty_authority_means_the_sender",
    ),
    "ChecksNoRules": Mutation(
        "encoder.py",
        "        message.check(strict=False)\n",
        "",
        "test_a_message_that_breaks_the_rules_of_its_type_is_not_sent",
    ),
    "SubscribesNoAddressedMessages": Mutation(
        "topics.py",
        '        found += [f"{source}/{_ANY_ADDRESS}/{sink}/{_ANY_ADDRESS}" for source in sources for sink in sinks]\n',
        "",
        UNCHANGED,
    ),
    "RoundsTheTtl": Mutation(
        "properties.py", "    if ttl and (ttl % 1000 or is_less):", "    if False:", UNCHANGED
    ),
    "DropsThePriority": Mutation("properties.py", "    if attributes.priority:", "    if False:", UNCHANGED),
    "DropsThePermissionLevel": Mutation(
        "properties.py",
        '(("7", attributes.permission_level), ("8", attributes.commstatus))',
        '(("8", attributes.commstatus),)',
        UNCHANGED,
    ),
    "DropsTheCommstatus": Mutation(
        "properties.py",
        '(("7", attributes.permission_level), ("8", attributes.commstatus))',
        '(("7", attributes.permission_level),)',
        UNCHANGED,
    ),
    "DropsTheToken": Mutation(
        "properties.py",
        '(("10", attributes.token), ("11", attributes.traceparent))',
        '(("11", attributes.traceparent),)',
        UNCHANGED,
    ),
    "DropsTheTraceparent": Mutation(
        "properties.py",
        '(("10", attributes.token), ("11", attributes.traceparent))',
        '(("10", attributes.token),)',
        UNCHANGED,
    ),
    "SwapsTheHalvesOfTheRequestId": Mutation(
        "properties.py",
        "_REQID.pack(reqid.msb, reqid.lsb)",
        "_REQID.pack(reqid.lsb, reqid.msb)",
        UNCHANGED,
    ),
    "DropsTheFormat": Mutation(
        "properties.py",
        "str(int(attributes.payload_format)) if attributes.payload_format else None,",
        "None,",
        "test_a_payload_is_never_read",
    ),
    "CachesAttributesWithoutTheFormat": Mutation(
        "properties.py",
        "            properties.content_type,\n            properties.expiry_s,",
        "            properties.expiry_s,",
        "test_messages_that_differ_in_one_attribute_arrive_unchanged",
    ),
    # --- receiver.py: packets on their way to the listeners
    "TrimsPayloads": Mutation(
        "receiver.py",
        "bytes(packet.payload))",
        "bytes(packet.payload).rstrip())",
        "test_a_payload_is_never_read",
    ),
    "CutsLongPayloads": Mutation(
        "receiver.py",
        "bytes(packet.payload))",
        "bytes(packet.payload)[:65_536])",
        "test_a_payload_of_any_size_is_untouched",
    ),
    "AcknowledgesNothing": Mutation(
        "receiver.py",
        "            self._acknowledge(packet.message, packet.connection)\n            return\n",
        "            return\n",
        "test_messages_of_one_topic_keep_their_order",
    ),
    "CountsNoTurns": Mutation(
        "receiver.py",
        "                self._wake_loop()\n            self._turns += 1\n",
        "                self._wake_loop()\n            self._turns -= 1\n",
        "test_each_message_is_progress_of_each_receiving_thread",
    ),
    "ReceivesAfterTheStop": Mutation(
        "receiver.py",
        "        self._is_accepting = False\n        self._inbox.put(None)\n",
        "        return\n",
        "test_closing_may_be_repeated_and_leaves_no_thread",
    ),
    # --- connection.py, unconfirmed.py: packets on their way to the broker
    "ReturnsOwnMessages": Mutation(
        "connection.py",
        "noLocal=not self._config.shared",
        "noLocal=False",
        "test_own_messages_are_not_returned",
    ),
    "LeaksAFile": Mutation(
        "connection.py",
        "                os.close(fd)\n",
        "                pass\n",
        "test_closing_leaves_no_open_file",
    ),
    "SendsTheNewestFirst": Mutation(
        "unconfirmed.py",
        "            sent = pending[0]\n",
        "            sent = pending[-1]\n",
        "test_messages_of_one_topic_keep_their_order",
    ),
    "SendsWithoutAConnection": Mutation(
        "unconfirmed.py",
        "            if not self._is_up:\n                raise",
        "            if False:\n                raise",
        "test_before_opening_and_after_closing_a_send_is_unavailable",
    ),
    "ConfirmsNothing": Mutation(
        "unconfirmed.py",
        "                sent = self._on_wire.pop(mid, None)\n",
        "                sent = None\n",
        "test_messages_of_one_topic_keep_their_order",
    ),
    "HasANegativeWindow": Mutation(
        "unconfirmed.py",
        "return max(0, min(free * OVERHEAD_BYTES, self._max_bytes - self._bytes))",
        "return -1",
        "test_the_answers_of_an_endpoint_have_the_types_of_the_port",
    ),
    "ForgetsToCountBytes": Mutation(
        "unconfirmed.py",
        "            self._bytes += sent.size\n",
        "",
        "test_a_counter_never_decreases",
    ),
    # --- for durable endpoints
    "KeepsNothing": Mutation(
        "unconfirmed.py", "        if overdue and store.keep(", "        if False and store.keep(", KEPT
    ),
    "ReleasesNothing": Mutation(
        "unconfirmed.py",
        "        if released and not store.release(_ROUTE, released):",
        "        if False:",
        KEPT,
    ),
    "AwaitsNothing": Mutation(
        "transport.py", "return self._unconfirmed.is_unconfirmed(id)", "return False", KEPT
    ),
    "ForgetsWhatABusyStoreRefused": Mutation(
        "unconfirmed.py",
        "                self._released[:0] = released",
        "                pass",
        "test_a_busy_store_is_asked_again",
    ),
    "ReturnsNothingAtTheEnd": Mutation(
        "transport.py",
        "return Unconfirmed(self._unconfirmed.messages())",
        "return Unconfirmed()",
        "test_what_is_unconfirmed_at_the_end_is_returned_in_order",
    ),
    "AddsIdsOfUnsafeMessages": Mutation(
        "receiver.py",
        "        before_ns = store.safe_before_ns()",
        "        before_ns = 1 << 62",
        "test_an_id_is_added_when_its_message_is_safe",
    ),
    "LeavesTheStoreOpen": Mutation(
        "receiver.py",
        "            self.store.close()",
        "            pass",
        "test_an_id_is_added_when_its_message_is_safe",
    ),
    "ReadsNoIds": Mutation(
        "receiver.py",
        "{*self.store.load(), *map(receipt_id, self.store.restored())}",
        "{*map(receipt_id, self.store.restored())}",
        "test_copies_of_what_an_earlier_process_received_are_dropped",
    ),
    "ReadsNoRestoredMessages": Mutation(
        "receiver.py",
        "{*self.store.load(), *map(receipt_id, self.store.restored())}",
        "{*self.store.load()}",
        "test_copies_of_a_restored_message_are_dropped",
    ),
    # --- transport.py: the port
    "ReportsTheLinkTooEarly": Mutation(
        "transport.py",
        "        self._unconfirmed.on_up()\n        self._set_link(True)",
        "        self._set_link(True)\n        self._unconfirmed.on_up()",
        "test_a_link_that_is_up_accepts_messages",
    ),
    "ReportsNoLink": Mutation(
        "transport.py",
        "        self._unconfirmed.on_up()\n        self._set_link(True)",
        "        self._unconfirmed.on_up()",
        "test_the_first_state_of_a_link_is_reported_by_open",
    ),
    "CountsDown": Mutation(
        "transport.py",
        '"sent": unconfirmed.sent,',
        '"sent": unconfirmed.sent - unconfirmed.confirmed,',
        "test_statistics_are_a_snapshot",
    ),
    "IgnoresSinkFilters": Mutation(
        "transport.py",
        "self._listeners.register(source_filter, sink_filter, listener)",
        "self._listeners.register(source_filter, None, listener)",
        UNCHANGED,
    ),
    "KeepsListeners": Mutation(
        "transport.py",
        "self._listeners.unregister(source_filter, sink_filter, listener)",
        "pass",
        "test_no_call_follows_an_unregistration",
    ),
    "FinishesWithAList": Mutation(
        "transport.py",
        "return Unconfirmed(self._unconfirmed.messages())",
        "return self._unconfirmed.messages()",
        "test_finishing_returns_what_is_unconfirmed_and_closes",
    ),
    "RaisesTheErrorOfAListener": Mutation(
        "transport.py",
        '        log.error("mqtt.listener_failed", exc_info=error, extra=extra)',
        "        raise error",
        "test_a_listener_that_raises_is_counted_and_affects_no_other",
    ),
}


def write_copy(directory: Path, name: str, mutation: Mutation | None = None) -> None:
    """Write the plugin as the package `name`, so that one process can import many copies."""
    package = directory / name
    package.mkdir()
    for path in SOURCE.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if mutation is not None and mutation.file == path.name:
            assert text.count(mutation.old) == 1, (name, text.count(mutation.old))
            text = text.replace(mutation.old, mutation.new)
        (package / path.name).write_text(text.replace(f"{PACKAGE}.", f"{name}."), encoding="utf-8")


class CopyContract(PairContract):
    """A contract of the copy `package`."""

    package: ClassVar[str]

    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        yield Pair(self.endpoint(ALPHA), self.endpoint(BETA))

    def endpoint(self, authority: str) -> EndpointTransport:
        config = import_module(f"{self.package}.config").MqttEndpoint(
            transport="mqtt",
            authorities=("*",),
            broker=os.environ[BROKER],
            client_id=f"{self.package}-{os.getpid()}-{authority}-{next(_numbers)}",
        )
        made: EndpointTransport = import_module(f"{self.package}.transport").MqttTransport(
            config, EndpointContext("net", authority, SYSTEM_CLOCK)
        )
        return made

    @contextmanager
    def outage(self) -> Iterator[None]:
        """For `DurableContract`."""
        pid = int(os.environ[BROKER_PID])
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def is_durable(test: str) -> bool:
    """Whether a test is of `DurableContract`."""
    return hasattr(DurableContract, test)


def class_name(name: str, test: str) -> str:
    """The class that has `test` for a copy."""
    return f"Test{name}{'Durable' * is_durable(test)}"


for _name in ("Correct", *MUTATIONS):
    for _contract, _end in ((TransportContract, ""), (DurableContract, "Durable")):
        globals()[f"Test{_name}{_end}"] = type(
            f"Test{_name}{_end}", (CopyContract, _contract), {"package": _name.lower()}
        )
