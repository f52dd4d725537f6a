# SPDX-License-Identifier: Apache-2.0
"""What any oracle judges of a run: threads, errors, the ledger. And the reports of the streamer.

The oracle knows nothing of the product's inside. The reports are the ledger of the last log line, the counters of the
endpoints, the dead letters and the spool.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from tests.simulation.host import STATE_DIR, LogEntry, Run, SimHost
from tests.simulation.world import wire_id
from ustreamer.host.storage.dead_letter_store import DIRECTORY, StoredDeadLetter, decode_letter

LOSS_COUNTERS: Final = ("not_retransmitted", "receipts_missing", "spool_lost")
"""Counters of an endpoint that report lost messages after the verdict `delivered`."""
_LETTER_LOSSES: Final = frozenset({"kill", "power", "disk"})
_LETTERS_IN_A_BURST: Final = 5_000
LOSS_VERDICTS: Final = ("expired", "dead_lettered", "throttled", "denied")
_ERROR: Final = 40
_EXPECTED_ERRORS: Final = (
    "storage.degraded",
    "egress.not_persisted",
    "dead_letters.not_persisted",
    "spool.delete_failed",
)
FIRST_NUMBER: Final = bytes(8)
"""The key of the record that counts the dead letters."""


class Violation(NamedTuple):
    """A broken promise. `kind` is the same for every seed that breaks it."""

    kind: str
    text: str


class HostOracle:
    """The evidence of one run, and the judgement of what each run promises."""

    loss_counters: tuple[str, ...] = LOSS_COUNTERS

    def __init__(self, host: SimHost, faults: Collection[str]) -> None:
        self._host = host
        self._faults = frozenset(faults)
        self._stop_lines = {each.process: each for each in host.log if each.event == "streamer.stopped"}

    # --- what the streamer reports ------------------------------------------------------------------------------------

    def _ordered_runs(self) -> Iterable[tuple[Run, LogEntry]]:
        for run in self._host.runs:
            line = self._stop_lines.get(run.process.name)
            if line is not None:
                yield run, line

    def _dead_letters(self) -> set[bytes]:
        return {wire_id(letter.message.id) for letter in self._stored_letters()}

    def _stored_letters(self, first: int = 0) -> list[StoredDeadLetter]:
        """The stored dead letters in their order, from the one with this index."""
        records = self._host.disk.stores.get(str(STATE_DIR / DIRECTORY), {})
        numbers = sorted(key for key in records if key != FIRST_NUMBER)[first:]
        return [decode_letter(number, records[number])[1] for number in numbers]

    def _reported(self, dead_letters: int) -> tuple[int, dict[str, int]]:
        """The number of messages that are reported as lost, but not by name.

        What fails or expires is one dead letter. Only if letters may have been lost, the verdicts are enough.
        """
        counts: Counter[str] = Counter()
        for _, line in self._ordered_runs():
            verdicts = {name: line.extra["ledger"][name] for name in LOSS_VERDICTS}
            if self._faults & _LETTER_LOSSES or sum(verdicts.values()) > _LETTERS_IN_A_BURST:
                counts.update(verdicts)
            for counters in line.extra["endpoints"].values():
                counts.update({name: counters.get(name, 0) for name in self.loss_counters})
        ended = sum(counts[name] for name in LOSS_VERDICTS)
        unnamed = max(0, ended - dead_letters) + counts.total() - ended
        return unnamed, {name: n for name, n in counts.items() if n}

    # --- the promises of each run -------------------------------------------------------------------------------------

    def _hangs(self) -> Iterable[Violation]:
        for run in self._host.runs:
            if run.main.alive and not run.process.killed:
                yield Violation("hang", f"{run.process.name} has not stopped")
            for failure in run.failures:
                yield Violation("failure", failure)

    def _errors(self) -> Iterable[Violation]:
        for failure in self._host.scheduler.failures:
            yield Violation("thread", failure)
        for entry in self._host.log:
            if entry.level >= _ERROR and entry.event not in _EXPECTED_ERRORS:
                yield Violation(
                    "error", f"{entry.process} logged {entry.event}: {entry.error or entry.extra}"
                )

    def _unaccounted(self) -> Iterable[Violation]:
        """In the last log line, each received message has a verdict, or is on disk. A live ledger is balanced."""
        for at_ns, unaccounted in self._host.unaccounted_readings[:1]:
            text = f"{unaccounted} messages at {at_ns / 1e9:.3f} s, {len(self._host.unaccounted_readings)} readings"
            yield Violation("unaccounted live", text)
        for run, line in self._ordered_runs():
            ledger: Mapping[str, int] = line.extra["ledger"]
            verdicts = sum(n for name, n in ledger.items() if name not in ("received", "queued"))
            if ledger["received"] - verdicts - ledger["queued"]:
                yield Violation("unaccounted", f"{run.process.name}: ledger {dict(ledger)}")
            if ledger["queued"] != line.extra["persisted"]:
                text = f"{run.process.name}: {ledger['queued']} queued, {line.extra['persisted']} on disk"
                yield Violation("queued at the end", text)
