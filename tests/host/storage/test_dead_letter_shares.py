# SPDX-License-Identifier: Apache-2.0
"""The dead letters of one network do not displace those of the others."""

from pathlib import Path

import pytest

from ustreamer.core.egress.dead_letter import LETTER_BURST, DeadLetterRate
from ustreamer.core.storage.lmdb_store import LmdbStore
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, StoredDeadLetter
from ustreamer.uprotocol.ustatus import UCode, UStatusError


def letter(ingress: str, endpoint: str = "chassis", payload: bytes = b"") -> StoredDeadLetter:
    return StoredDeadLetter(b"", payload, len(payload), 14, "away", endpoint, ingress, 0, 0, 0)


def contents(store: DeadLetterStore) -> list[tuple[str, str]]:
    return [(each.ingress, each.endpoint) for each in map(store.get, store.numbers())]


def test_a_flood_of_one_network_spares_the_letters_of_others(tmp_path: Path) -> None:
    store = DeadLetterStore(tmp_path / "letters", DeadLettersConfig(messages=10))
    store.append([letter("backbone")] * 3)
    store.append([letter("cloud")] * 500)
    # The answers of the streamer to forged requests are letters of the network that they are for.
    store.append([letter("self", "cloud")] * 500)
    assert contents(store).count(("backbone", "chassis")) == 3
    assert len(store.numbers()) == 10
    assert store.statistics()["displaced"] == 993
    assert store.numbers() == sorted(store.numbers())
    store.close()


def test_the_shares_hold_after_a_restart(tmp_path: Path) -> None:
    store = DeadLetterStore(tmp_path / "letters", DeadLettersConfig(messages=10))
    store.append([letter("backbone"), *[letter("cloud")] * 9])
    store.close()
    store = DeadLetterStore(tmp_path / "letters", DeadLettersConfig(messages=10))
    store.append([letter("cloud")] * 20)
    assert contents(store).count(("backbone", "chassis")) == 1
    store.close()


def test_large_letters_of_one_network_leave_room_for_others(tmp_path: Path) -> None:
    store = DeadLetterStore(tmp_path / "letters", DeadLettersConfig(messages=1000, bytes=100_000))
    store.append([letter("backbone", payload=bytes(1_000))] * 10)
    store.append([letter("cloud", payload=bytes(20_000))] * 10)
    assert contents(store).count(("backbone", "chassis")) == 10
    store.close()


def test_a_refused_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DeadLetterStore(tmp_path / "letters", DeadLettersConfig(messages=4))
    store.append([letter("backbone"), letter("cloud"), letter("cloud"), letter("cloud")])
    before = store.numbers(), store.statistics()
    commit = LmdbStore.commit

    def refused(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no space left")

    monkeypatch.setattr(LmdbStore, "commit", refused)
    with pytest.raises(UStatusError, match="no space left"):
        store.append([letter("cloud"), letter("cloud")])
    assert (store.numbers(), store.statistics()) == before
    monkeypatch.setattr(LmdbStore, "commit", commit)
    store.append([letter("cloud")])
    assert contents(store).count(("backbone", "chassis")) == 1
    store.close()


def test_each_network_has_letters_of_its_own_for_an_endpoint() -> None:
    rate = DeadLetterRate()
    admitted = sum(rate.admit("chassis", 0, "cloud") for _ in range(LETTER_BURST + 50))
    assert (admitted, rate.suppressed) == (LETTER_BURST, 50)
    assert rate.admit("chassis", 0, "backbone")
