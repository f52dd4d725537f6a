# SPDX-License-Identifier: Apache-2.0
"""More messages than a queue holds: each rejected message becomes a dead letter, and each rejected request gets a
response.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.delivery.dead_letters import DEAD_LETTER_TOPIC, DeadLetterMessage
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, ZenohSample
from tests.e2e.rigs.streamer import StreamerProcess, assert_ledger_balanced
from tests.e2e.rigs.vehicle import free_ports
from tests.e2e.rigs.wire import Attributes, Id, Uri

RESOURCE_EXHAUSTED: Final = 8
WITHIN_S: Final = 40.0  # 10 000 messages and their dead letters, in Python; 4 s on a quiet machine
CLOUD: Final = 0x2001
TTL_MS: Final = 600_000  # of requests: none may expire in the queue

# The cloud and the reader of dead letters are on different Zenoh networks: one full queue must not fill the other.
# The pause is longer than the test, so no message is in transit while the queue fills and the count is exact. A new
# subscriber ends the pause.
_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{cloud}"]

[endpoints.workshop]
transport = "zenoh"
authorities = ["workshop"]
listen = ["tcp/127.0.0.1:{workshop}"]

[egress.cloud]
queue_messages = {queue}
retry = {{ first_ms = 240000, max_ms = 240000 }}
max_age_ms = 600000

[plugins.usubscription]
"""


class OverflowScenario(NamedTuple):
    """A streamer with a queue of `queue` messages for the cloud, an application, and a reader of dead letters."""

    process: StreamerProcess
    app: ZenohEntity
    reader: ZenohEntity
    cloud_port: int

    def subscribe_and_leave(self, *topics: Uri) -> None:
        """Let the uEntity in the cloud subscribe and leave."""
        with ZenohEntity(self.cloud_port, "cloud", CLOUD) as cloud:
            for topic in topics:
                cloud.subscribe(topic)
        self.process.stderr.wait_one(lambda line: '"zenoh.link_down"' in line and '"cloud"' in line)

    def wait_queue_paused(self) -> None:
        """Wait until the cloud queue has tried to send, and pauses."""
        self.process.stderr.wait_one(lambda line: '"egress.unavailable"' in line and '"cloud"' in line)


@contextmanager
def running(directory: Path, queue: int) -> Iterator[OverflowScenario]:
    ports = free_ports()
    backbone, cloud, workshop = ports.backbone, ports.cloud, ports.someip
    config = directory / "overflow.toml"
    config.write_text(
        _CONFIG.format(backbone=backbone, cloud=cloud, workshop=workshop, queue=queue), encoding="utf-8"
    )
    with ExitStack() as stack:
        process = stack.enter_context(StreamerProcess(config))
        app = stack.enter_context(ZenohEntity(backbone, "hpc.vin1"))
        reader = stack.enter_context(ZenohEntity(workshop, "workshop"))
        reader.subscribe(DEAD_LETTER_TOPIC)
        yield OverflowScenario(process, app, reader, cloud)


def nth_message(net: OverflowScenario, topic: Uri, number: int) -> Attributes:
    """Message `number`: of ten, four publications, three notifications and three requests; all of one class."""
    id, source, far = wire.new_id(), net.app.address, Uri("cloud", CLOUD, 1)
    if number % 10 < 4:
        return Attributes(id, wire.PUBLISH, topic, priority=wire.CS4)
    if number % 10 < 7:
        return Attributes(id, wire.NOTIFICATION, source.at(0x8002), far, priority=wire.CS4)
    return Attributes(id, wire.REQUEST, source, far.at(1), priority=wire.CS4, ttl=TTL_MS)


def wait_dead_letters(reader: ZenohEntity, count: int) -> list[DeadLetterMessage]:
    """Wait for this number of dead letters, and return all."""
    return [
        DeadLetterMessage.from_sample(sample)
        for sample in reader.wait_events(DEAD_LETTER_TOPIC, count, WITHIN_S)
    ]


def _responds_to_one_of(requests: set[Id]) -> Callable[[ZenohSample], bool]:
    return lambda s: s.attributes is not None and s.attributes.reqid in requests


def wait_received(cloud: ZenohEntity, ids: set[Id], count: int) -> list[ZenohSample]:
    """Wait until the cloud has received this number of messages."""
    return cloud.inbox.wait_count(lambda s: s.attributes is not None and s.head.id in ids, count, WITHIN_S)


def test_10_000_messages_for_a_queue_of_1_000_are_kept_or_dead_letters_and_requests_get_responses(
    tmp_path: Path,
) -> None:
    with running(tmp_path, queue=1_000) as net:
        topic = net.app.address.at(0x8001)
        net.subscribe_and_leave(topic)
        sent = [nth_message(net, topic, number) for number in range(10_000)]
        net.app.send_message(sent[0], b"0")
        net.wait_queue_paused()
        for number, attributes in enumerate(sent[1:], 1):
            net.app.send_message(attributes, b"%d" % number)

        found = wait_dead_letters(net.reader, 9_000)
        dead = {letter.attributes.id for letter in found}
        assert (len(found), len(dead)) == (9_000, 9_000)
        assert {letter.status.code for letter in found} == {RESOURCE_EXHAUSTED}
        assert {letter.endpoint for letter in found} == {"cloud"}
        by_id = {attributes.id: (attributes, b"%d" % number) for number, attributes in enumerate(sent)}
        assert all((letter.attributes, letter.payload) == by_id[letter.attributes.id] for letter in found)

        # A subscriber returns: the kept messages arrive in order, and are exactly those that were not dropped.
        sent_request = [attributes.id for attributes in sent if attributes.type == wire.REQUEST]
        with ZenohEntity(net.cloud_port, "cloud", CLOUD) as cloud:
            kept = wait_received(cloud, set(by_id), 1_000)
            for sample in kept:
                if sample.head.type == wire.REQUEST:
                    cloud.respond(sample, b"late, but here")
            for kind in (
                wire.PUBLISH,
                wire.NOTIFICATION,
                wire.REQUEST,
            ):  # each arrives on its own thread
                of_kind = [sample.head.id for sample in kept if sample.head.type == kind]
                assert of_kind == [each.id for each in sent if each.type == kind and each.id not in dead]

            answers = net.app.inbox.wait_count(
                _responds_to_one_of(set(sent_request)), len(sent_request), WITHIN_S
            )
            verdicts = {sample.head.reqid: sample.head.commstatus or wire.OK for sample in answers}
            assert len(answers) == len(verdicts) == len(sent_request) == 3_000
            assert verdicts == {id: RESOURCE_EXHAUSTED if id in dead else wire.OK for id in sent_request}
            net.process.send_sigterm()
            assert net.process.wait_exit() == 0
    books = net.process.ledger
    print(f"offered={len(sent)} dead_letters={len(dead)} responses={len(verdicts)}")
    assert_ledger_balanced(books)
    calls = 2  # of uSubscription: a request, its response and its update
    assert books["dead_lettered"] == 9_000
    # Its changes also go to each network where an entity listens to everything.
    changes = books["delivered"] - (1_000 + 9_000 + len(sent_request) + 3 * calls)
    assert 0 <= changes <= 12
    assert books["expired"] == books["denied"] == books["throttled"] == 0


def test_a_dead_letter_for_a_full_queue_makes_no_further_dead_letter(tmp_path: Path) -> None:
    with running(tmp_path, queue=10) as net:
        net.subscribe_and_leave(DEAD_LETTER_TOPIC)  # queued behind the overflowing queue itself
        sent = [nth_message(net, net.app.address.at(0x8001), 9) for _ in range(100)]
        net.app.send_message(sent[0])
        net.wait_queue_paused()
        for attributes in sent[1:]:
            net.app.send_message(attributes)
        found = wait_dead_letters(net.reader, 90)
        net.app.inbox.wait_count(_responds_to_one_of({each.id for each in sent}), 90)
        with ZenohEntity(net.cloud_port, "cloud", CLOUD) as cloud:
            kept = [each.head.id for each in wait_received(cloud, {each.id for each in sent}, 10)]
            net.process.send_sigterm()
            assert net.process.wait_exit() == 0
        # Nearly always the first ten are kept. One in flight can be evicted when it is back and the queue is full.
        dead = [letter.attributes.id for letter in found]
        assert (len(kept), len(dead)) == (10, 90)
        assert {*kept, *dead} == {each.id for each in sent}
        assert {each.id for each in sent[11:]} <= {*dead}
        assert len(net.reader.events(DEAD_LETTER_TOPIC)) == 90
    books = net.process.ledger
    assert_ledger_balanced(books)
    print(f"recursion={books['dead_lettered'] - 90 - 90}")
    assert books["dead_lettered"] == 90 + 90  # the messages, and the copies of their letters for the cloud
