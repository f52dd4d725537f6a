# SPDX-License-Identifier: Apache-2.0
"""What this process and all below it have used: a busy machine stretches seconds, not these. Linux."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def _stat_fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat, from the state on; a name in it may have spaces and brackets. Empty if it is gone."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return []


def _descendants() -> Iterator[tuple[int, list[str]]]:
    """This process and its descendants."""
    every = {
        int(entry.name): _stat_fields(int(entry.name))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    parents = {pid: int(fields[1]) for pid, fields in every.items() if fields}
    for pid, fields in every.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and fields:
            yield pid, fields


def cpu_s() -> float:
    """CPU time of the tree, those included that have ended and were waited for."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _descendants()) / os.sysconf("SC_CLK_TCK")


def exited_peak_mb() -> float:
    """The largest that any child was which has ended and was waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def reset_peaks() -> None:
    """From now on the peaks of the processes that are there are those of what follows."""
    for pid, _ in _descendants():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def own_peak_mb() -> float:
    """What this process alone has had at its peak."""
    return _peaks_mb(os.getpid())


def peak_mb() -> float:
    """Memory that the processes of the tree that are there now have had at their peaks, added up: an upper bound."""
    return _peaks_mb(*(pid for pid, _ in _descendants()))


def _peaks_mb(*pids: int) -> float:
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return total / 1024
