# SPDX-License-Identifier: Apache-2.0
"""R27: the Nth call of the operating system fails, for each N until a run needs fewer calls.

    python -m tests.scorecard.failing_io STORE DIRECTORY

does that for one store, with the library of `nth_call` loaded, and prints its figures as JSON. For sockets each N is a
streamer of its own.
"""

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.store.store import SubscriptionStore, delete_subscription, put_subscription

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, ZenohEntity, eventually
from tests.e2e.rigs.failing_disk import unsupported_reason
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.vehicle import CLIMATE, PROVIDER, Vehicle, running_vehicle
from tests.e2e.rigs.wire import Uri
from tests.scorecard.nth_call import build_library
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, StoredDeadLetter
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import SpoolRecord
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("device2", 0x10AB, 3, 0x80CD)
MAP_BYTES: Final = 1 << 22
CHANGES: Final = 8
ERRORS: Final = (errno.EIO, errno.ENOSPC)
EVENTS: Final = 20


class Attempt(NamedTuple):
    """What one run had acknowledged as added and as removed, and all that it tried to add."""

    added: set[int]
    removed: set[int]
    tried: set[int]


class Outcome(NamedTuple):
    """A run, and what a later process found."""

    done: Attempt
    found: set[int]
    damaged: int

    @property
    def keeps_its_promises(self) -> bool:
        done, found = self.done, self.found
        is_complete = done.added - done.removed <= found <= done.tried - done.removed
        return is_complete and not self.damaged


Change = Callable[[], object]


def _attempt(open_store: Change, add: Callable[[int], object], remove: Callable[[int], object]) -> Attempt:
    """Add numbers, and remove each third one again. A refused open is tried once more, as by a restart."""
    done = Attempt(set(), set(), set())
    for _ in range(2):
        if _succeeds(open_store):
            break
    else:
        return done
    for number in range(CHANGES):
        done.tried.add(number)
        if _succeeds(partial(add, number)):
            done.added.add(number)
        if number % 3 == 2 and number in done.added and _succeeds(partial(remove, number)):
            done.removed.add(number)
    return done


def _succeeds(change: Change) -> bool:
    """False for a typed refusal; every other exception ends the run."""
    try:
        change()
    except UStatusError:
        return False
    return True


def _subscriptions(directory: Path, stop: Change) -> Outcome:
    def change(make: Callable[[UUri], object], number: int) -> None:
        store.commit([make(UUri("device1", number, 1, 0))], [])  # type: ignore[list-item]

    store = SubscriptionStore(directory / "s", MAP_BYTES)
    done = _attempt(
        store.open,
        partial(change, lambda who: put_subscription(SubscriptionRecord(TOPIC, who))),
        partial(change, lambda who: delete_subscription(TOPIC, who)),
    )
    store.close()
    stop()
    later = SubscriptionStore(directory / "s", MAP_BYTES)
    later.open()
    found = {each.subscriber.ue_id for each in later.load_subscriptions()}
    later.close()
    return Outcome(done, found, later.statistics()["store_quarantined"])


def _spool(directory: Path, stop: Change) -> Outcome:
    limits = SpoolLimits(1_000, 1_000_000)
    keys: dict[int, bytes] = {}

    def add(number: int) -> None:
        record = SpoolRecord(b"a", number.to_bytes(4, "big"), "c", None, None, 0, 0, b"", 0)
        [keys[number]] = spool.commit([(1, record)])

    def remove(number: int) -> None:
        spool.delete_messages([keys[number]])  # if refused, with the next call

    spool = Spool(directory / "backbone", limits)
    done = _attempt(spool.open, add, remove)
    spool.close()
    stop()
    later = Spool(directory / "backbone", limits)
    later.open()
    found = {
        int.from_bytes(each.payload, "big")
        for _, each in later.read(1, None, 1_000, 1_000_000)
        if each is not None
    }
    later.close()
    return Outcome(done, found, later.lost + later.quarantined)


def _dead_letters(directory: Path, stop: Change) -> Outcome:
    limits = DeadLettersConfig()

    def letter(number: int) -> StoredDeadLetter:
        return StoredDeadLetter(b"a", b"", number, 14, "reason", "backbone", "chassis", number, 1_000, 2_000)

    def add(number: int) -> None:
        store.append([letter(number)])

    def remove(number: int) -> None:
        numbers = [each for each in store.numbers() if store.get(each).payload_size == number]
        assert store.delete(numbers) == 1

    store = DeadLetterStore(directory / "letters", limits)
    done = _attempt(store.open, add, remove)
    store.close()
    stop()
    later = DeadLetterStore(directory / "letters", limits)
    later.open()
    found = {later.get(number).payload_size for number in later.numbers()}
    damaged = later.statistics()["damaged"]
    later.close()
    return Outcome(done, found, damaged)


STORES: Final = {"subscriptions": _subscriptions, "spool": _spool, "dead letters": _dead_letters}


class NthCall:
    """The library of `nth_call` in this process; `needed` calls were made before the failures were switched off."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self.needed = 0

    def fail(self, directory: Path, number: int, error: int) -> None:
        self._library.fail_nth(b"file", os.fsencode(directory), ctypes.c_long(number), error)

    def stop(self) -> None:
        self.needed = self._library.calls()
        self._library.fail_nth(b"none", b"", ctypes.c_long(0), 0)


def main(store: str, root: str) -> None:
    nth = NthCall()
    trials = breaks = n_max = refused = 0
    for error in ERRORS:
        number = 1
        while True:
            directory = Path(root) / f"{error}-{number}"
            directory.mkdir()
            nth.fail(directory, number, error)
            try:
                outcome = STORES[store](directory, nth.stop)
            except StoreDamaged as error_at_start:
                outcome = None
                reason = str(error_at_start)
            else:
                reason = str(outcome)
            if nth.needed < number:
                break
            trials += 1
            if outcome is not None:
                refused += len(outcome.done.tried - outcome.done.added) + (not outcome.done.tried)
            if outcome is None or not outcome.keeps_its_promises:
                print(f"call {number}, error {error}: {reason}", file=sys.stderr)
                breaks += 1
            shutil.rmtree(directory)
            number += 1
        n_max = max(n_max, number - 1)
    print(
        json.dumps({"calls_failed": trials, "n_max": n_max, "invariant_breaks": breaks, "refused": refused})
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := unsupported_reason():
        pytest.skip(reason)
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("store", STORES)
def test_no_failed_call_breaks_a_promise_of_a_store(tmp_path: Path, library: Path, store: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.scorecard.failing_io", store, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    figures: dict[str, int] = json.loads(done.stdout)
    print(store, *(f"{name}={value}" for name, value in figures.items()))


@pytest.mark.parametrize("family", ["send", "receive"])
def test_no_failed_call_of_a_socket_ends_the_streamer_or_hides_a_message(
    tmp_path: Path, library: Path, trials: int, family: str
) -> None:
    """`trials` is the largest N. Each message arrives, or the ledger or a counter reports it."""
    for number in range(1, trials + 1):
        directory = tmp_path / str(number)
        directory.mkdir()
        settings = {"LD_PRELOAD": library, "NTH_FAMILY": family, "NTH": number, "NTH_ERROR": errno.ENOMEM}
        prefix = ["env", *(f"{name}={value}" for name, value in settings.items())]
        launch = partial(StreamerProcess, prefix=prefix)
        try:
            with running_vehicle(directory, launch=launch) as vehicle:
                _exchange(vehicle, directory / "state")
        except AssertionError as error:
            if "exit code 69" not in str(error):
                raise
            print("starts_refused=1")  # with its reason, before READY
        print("calls_failed=1")


def _exchange(vehicle: Vehicle, state: Path) -> None:
    """Events in both directions and calls: each arrives, is answered, or is a dead letter."""
    topic = vehicle.unused_topic()
    with ZenohEntity(vehicle.ports.backbone, PROVIDER.authority, PROVIDER.ue_id) as provider:
        provider.subscribe(topic)
        for each in range(EVENTS):
            provider.publish(PROVIDER.at(0x8001), b"out %d" % each)
            vehicle.send_event(topic, b"in %d" % each)
        calls = [provider.send_request(Uri("chassis", CLIMATE, 1, ECHO), b"call") for _ in range(EVENTS)]
        answers = [provider.wait_response(each) for each in calls]
        failed = sum(each.head.commstatus not in {None, wire.OK} for each in answers)

        def missing() -> int:
            out = len({frame.raw for frame in vehicle.receiver.inbox.items() if b"out " in frame.raw})
            letters: int = statistics(state)["ledger"]["dead_lettered"]
            return max(0, 2 * EVENTS - out - len(provider.events(topic)) - letters)

        eventually(missing, 0)
        print(f"invariant_breaks={missing()} calls_with_error={failed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
