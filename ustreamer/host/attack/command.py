# SPDX-License-Identifier: Apache-2.0
"""`ustreamer attack`: selects the attacks, measures each on a running copy, and reports."""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ustreamer.host.attack import report as reports
from ustreamer.host.attack.attack import Attack
from ustreamer.host.attack.families import ALL
from ustreamer.host.attack.probe import VehicleProbe
from ustreamer.host.attack.scene import Scene
from ustreamer.host.attack.streamer_copy import StreamerCopy
from ustreamer.host.attack.target import NoVehiclePath, Target
from ustreamer.host.attack.verdicts import (
    AttackResult,
    AttackVerdict,
    Measurement,
    StreamWindow,
    is_noise,
    judge,
    memory_limit,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError

WINDOWS: Final = 3
"""Windows with the attack; there is one more without it."""
_ATTEMPTS: Final = 3
"""A result that a busy machine could explain is measured again."""
_MEMORY_S: Final = 3.0
_NICENESS: Final = 19


class UnknownAttack(Exception):
    """A name of `--only` that no attack has."""


def select(names: Sequence[str]) -> list[Attack]:
    """The attacks with these names, all without names. Raises UnknownAttack."""
    known = {each.name: each for each in ALL}
    for name in names:
        if name not in known:
            raise UnknownAttack(f"no attack {name!r}; `ustreamer attack --list` has them")
    return [each for each in ALL if not names or each.name in names]


def absent_parts(attack: Attack, target: Target) -> str:
    """The parts that an attack needs and the configuration does not have."""
    return ", ".join(str(need) for need in attack.needs if need not in target.parts())


def run(config: Path, *, only: Sequence[str] = (), as_json: bool = False, seconds: float = 1.0) -> int:
    """Attack a copy of `config`; returns 0 if every attack held, else 1. UNAVAILABLE if none applies.

    `seconds` is the length of a window. Raises ConfigError for the file, UStatusError if the copy does not start or
    nothing can be measured.
    """
    attacks = select(only)
    try:
        results, absent = _attack_all(config, attacks, seconds, quiet=as_json)
    except NoVehiclePath as error:
        raise UStatusError(UCode.UNAVAILABLE, f"{config}: {error}") from error
    report = reports.report_of(str(config), results, absent)
    if as_json:
        print(json.dumps(msgspec.to_builtins(report), indent=2))
    else:
        print(reports.summary(report))
    if not results:
        raise UStatusError(UCode.UNAVAILABLE, f"{config}: none of the selected attacks applies")
    return 1 if report.broken else 0


def _attack_all(
    config: Path, attacks: Sequence[Attack], seconds: float, *, quiet: bool
) -> tuple[list[AttackResult], dict[str, str]]:
    """Attack in turn, one copy for all; a new one if an attack has left damage."""
    results: list[AttackResult] = []
    absent: dict[str, str] = {}
    if not quiet:
        print(reports.header(), flush=True)
    with ExitStack() as current:
        bench: Bench | None = None
        for attack in attacks:
            if bench is None:
                bench = current.enter_context(_bench(config, seconds))
            if parts := absent_parts(attack, bench.target):
                absent[attack.name] = parts
                continue
            result = bench.measure(attack)
            results.append(result)
            if not quiet:
                print(reports.row(result), flush=True)
            if result.verdict is AttackVerdict.BROKEN and not bench.is_sound():
                current.close()
                bench = None
    return results, absent


@contextmanager
def _bench(config: Path, seconds: float) -> "Iterator[Bench]":
    """A running copy with its probe and an attacker's nodes."""
    with StreamerCopy(config) as streamer, VehicleProbe(streamer.target) as probe:
        scene = Scene(streamer.target, seconds)
        try:
            yield Bench(streamer, probe, scene)
        finally:
            scene.close()


class Bench:
    """One running copy. `measure` attacks it."""

    def __init__(self, streamer: StreamerCopy, probe: VehicleProbe, scene: Scene) -> None:
        self.target = streamer.target
        self._streamer, self._probe, self._scene = streamer, probe, scene
        self._quiet = self._quiet_window()
        self._memory_at_start = streamer.memory_bytes()

    def measure(self, attack: Attack) -> AttackResult:
        """Attack until the result is no noise, at most `_ATTEMPTS` times; the last one counts."""
        measured = self._measure_once(attack)
        for _ in range(_ATTEMPTS - 1):
            if not is_noise(judge(attack.name, attack.family, measured).reasons, measured):
                break
            measured = self._measure_once(attack)
        return judge(attack.name, attack.family, measured)

    def is_sound(self) -> bool:
        """Whether the streamer works as at its start: vehicle messages, subscriptions, memory."""
        if not self._streamer.is_alive or self._scene.service_denied():
            return False
        self._quiet = self._quiet_window()
        within = self._streamer.memory_bytes() <= memory_limit(self._memory_at_start)
        return within and not (self._quiet.lost or self._quiet.foreign)

    def _measure_once(self, attack: Attack) -> Measurement:
        before = self._streamer.memory_bytes()
        quiet, attacked, effects = [self._quiet], [], []
        for _ in range(WINDOWS):
            self._probe.take()
            effects.append(self._attack(attack))
            if not self._streamer.is_alive:
                break
            attacked.append(self._probe.take())
            quiet.append(self._quiet_window())
            if effects[-1]:
                break
        self._quiet = quiet[-1]
        after = self._streamer.wait_memory(memory_limit(before), _MEMORY_S)
        return Measurement(
            quiet,
            attacked or quiet[:1],
            before,
            after,
            next(filter(None, effects), ""),
            self._streamer.is_alive,
        )

    def _quiet_window(self) -> StreamWindow:
        self._probe.take()
        self._scene.hold()
        return self._probe.take()

    def _attack(self, attack: Attack) -> str:
        """Run one window of an attack, on a thread of the lowest priority."""
        effects: list[str] = []
        failures: list[Exception] = []

        def work() -> None:
            # The attacker yields to the streamer: what it costs on this machine, no network would cost it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            try:
                with self._scene.whole_window():
                    effects.append(attack.run(self._scene))
            except Exception as error:  # noqa: BLE001 - foreign code of an attacker; raised below
                failures.append(error)

        thread = threading.Thread(target=work, name=f"attack {attack.name}")
        thread.start()
        thread.join()
        if failures and self._streamer.is_alive:
            raise failures[0]
        return effects[0] if effects else ""


def print_list() -> int:
    print(reports.listing(ALL))
    return 0


def print_error(error: UnknownAttack) -> int:
    print(error, file=sys.stderr)
    return 2
