# SPDX-License-Identifier: Apache-2.0
"""Other runs of the kit at the same subject. Each run declares liveliness tokens of Zenoh.

A case that disturbs every client of the subject runs when the other runs have ended their other cases. Of the runs that
wait for that, the one with the lowest id is the first.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final

import zenoh

from uprotocol_tck.case import CaseFailed, NotJudged
from uprotocol_tck.probe import Network

WAIT_S: Final = 240.0
"""For the ends of other runs."""
PAUSE_S: Final = 0.05
SETTLE_S: Final = 3.0
"""After this time a run that has restarted the subject is there again."""
MAX_INSTANCE: Final = 0x7FFE
_OTHER: Final = "another run of the kit is at the subject"
_RUNS, _WAITS, _DISTURBS = "runs", "waits", "disturbs"


class OtherRuns:
    """This run among others. `instance` is that of all its entities; no other run has it."""

    def __init__(
        self, network: Network, note: Callable[[str], None] = lambda _: None, wait_s: float = WAIT_S
    ) -> None:
        """`note` takes what this run waits for. Raises NotJudged if another run disturbs for longer than `wait_s`."""
        self._network = network
        self._note = note
        self._wait_s = wait_s
        taken = {_instance_of(each) for each in self._ids(_RUNS)}
        self.instance = random.choice([each for each in range(1, MAX_INSTANCE) if each not in taken])
        self._id = f"{self.instance:04x}-{random.getrandbits(32):08x}"
        self._declare(_RUNS)
        self._wait(lambda: not self._ids(_DISTURBS), "another run of the kit disturbs the subject")

    def has(self, instance: int) -> bool:
        """Whether entities of this instance belong to another run that goes on; True while the network is away."""
        try:
            return instance in {_instance_of(each) for each in self._ids(_RUNS) - {self._id}}
        except zenoh.ZError:  # this run has left the network for a moment
            return True

    @contextmanager
    def exclusive(self, away: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
        """Wait for the other runs: the body disturbs none. Raises NotJudged if another run is there for too long.

        `away` is entered while this run waits: it leaves what another run needs for itself.
        """
        self._declare(_WAITS)
        if self._ids(_RUNS) != {self._id}:
            with away():
                self._wait(self._is_first_after_others, _OTHER)
        self._wait(self._may_disturb, _OTHER)
        try:
            yield
        finally:
            self._network.withdraw(self._key(_DISTURBS))

    def _is_first_after_others(self) -> bool:
        """True if it stays so: a run that restarts the subject loses its tokens for a moment, and so does this one."""
        with suppress(CaseFailed, zenoh.ZError):  # the subject restarts, so this run has no session
            if not self._is_first():
                return False
            if self._ids(_RUNS) - {self._id}:  # they wait, too
                return True
            self._network.leave()
            self._network.return_()
            self._network.stop.sleep(SETTLE_S)
            return self._is_first()
        with suppress(CaseFailed):
            self._network.return_()
        return False

    def _may_disturb(self) -> bool:
        if not self._is_first():
            return False
        self._declare(_DISTURBS)
        if self._is_first():  # a run that began since has seen the token
            return True
        self._network.withdraw(self._key(_DISTURBS))
        return False

    def _is_first(self) -> bool:
        others = self._ids(_RUNS) - {self._id}
        return others <= self._ids(_WAITS) and all(self._id < each for each in others)

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + self._wait_s
        is_noted = False
        while not is_reached():
            if not is_noted:
                self._note(f"{what}; this run waits up to {self._wait_s:g} s")
                is_noted = True
            if time.monotonic() > until:
                raise NotJudged(f"{what} for more than {self._wait_s:g} s")
            self._network.stop.sleep(PAUSE_S)

    def _declare(self, state: str) -> None:
        self._network.declare(self._key(state))

    def _key(self, state: str) -> str:
        return f"uprotocol-tck/{self._id}/{state}"

    def _ids(self, state: str) -> set[str]:
        return {key.split("/")[1] for key in self._network.declared(f"uprotocol-tck/*/{state}")}


def _instance_of(id: str) -> int:
    with suppress(ValueError):
        return int(id.partition("-")[0], 16)
    return 0
