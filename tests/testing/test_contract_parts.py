# SPDX-License-Identifier: Apache-2.0
"""The parts of the contract, and the listeners and the wait that its tests use."""

import threading

import pytest

from ustreamer.testing import contract, life_contract, mailbox, messages, pair, port_contract, waiting

PARTS = (contract.TransportContract, life_contract.LifeContract, port_contract.PortContract)


def test_no_part_of_the_contract_hides_a_test_of_another_part() -> None:
    names = [name for part in PARTS for name in vars(part) if name.startswith("test_")]
    assert len(names) == len(set(names)) > 40
    assert all(issubclass(part, pair.PairContract) for part in PARTS)


def test_a_mailbox_waits_for_a_number_of_messages_and_returns_what_it_has() -> None:
    inbox = mailbox.Mailbox()
    one, two = messages.four_messages()[:2]
    assert inbox.wait(1, 0.01) == []
    sender = threading.Thread(target=lambda: list(map(inbox, (one, two))))
    sender.start()
    assert inbox.wait(2) == [one, two]
    sender.join()


def test_a_condition_that_never_holds_fails_at_its_deadline_with_its_name() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.01 s for the moon"):
        waiting.wait_until(lambda: False, "the moon", 0.01)
