# SPDX-License-Identifier: Apache-2.0
import pytest

from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, Verdict, snapshot

FINAL = [verdict for verdict in Verdict if verdict is not Verdict.QUEUED]


def ledger(received: int, *settled: Verdict) -> Ledger:
    book = Ledger()
    book.received = received
    for verdict in settled:
        book.settle(verdict)
    return book


def test_every_verdict_is_a_column_of_the_snapshot() -> None:
    columns = ("received", *(verdict.name.lower() for verdict in Verdict))
    assert LedgerSnapshot.__struct_fields__ == columns


@pytest.mark.parametrize("verdict", FINAL)
def test_a_verdict_settles_one_delivery_in_its_own_column(verdict: Verdict) -> None:
    balance = snapshot([ledger(1, verdict)], queued=0)
    assert getattr(balance, verdict.name.lower()) == 1
    assert balance.unaccounted == 0


@pytest.mark.parametrize("verdict", FINAL)
def test_a_delivery_without_a_verdict_is_unaccounted_and_one_settled_twice_is_too(verdict: Verdict) -> None:
    assert snapshot([ledger(2, verdict)], queued=0).unaccounted == 1
    assert snapshot([ledger(1, verdict, verdict)], queued=0).unaccounted == -1


def test_queued_messages_are_measured_and_not_counted() -> None:
    counted = ledger(3, Verdict.QUEUED, Verdict.DELIVERED)
    assert snapshot([counted], queued=2) == LedgerSnapshot(
        received=3,
        delivered=1,
        throttled=0,
        expired=0,
        dead_lettered=0,
        denied=0,
        no_subscriber=0,
        queued=2,
    )
    assert snapshot([counted], queued=2).unaccounted == 0


def test_ledgers_of_ingresses_and_queues_add_up() -> None:
    """The queue settles deliveries that the ingress received."""
    ingresses = [ledger(4, Verdict.THROTTLED), ledger(2, Verdict.DENIED)]
    queues = [ledger(0, Verdict.DELIVERED, Verdict.DELIVERED), ledger(0, Verdict.EXPIRED)]
    balance = snapshot(iter([*ingresses, *queues]), queued=1)
    assert (balance.received, balance.delivered, balance.throttled, balance.denied, balance.expired) == (
        6,
        2,
        1,
        1,
        1,
    )
    assert balance.unaccounted == 0


def test_empty_ledgers_are_balanced() -> None:
    assert snapshot([], queued=0).unaccounted == 0
