# SPDX-License-Identifier: Apache-2.0
"""CPU and memory of this process and its descendants. Other load changes elapsed time, but not these. Linux."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; the name may contain spaces and brackets. Empty for an ended
    process.
    """
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
    """CPU time of the tree, including awaited processes that ended."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _descendants()) / os.sysconf("SC_CLK_TCK")


def exited_peak_mb() -> float:
    """Peak memory of any awaited child that ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def reset_peaks() -> None:
    """Reset the peaks of the running processes."""
    for pid, _ in _descendants():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def own_peak_mb() -> float:
    """Peak memory of this process."""
    return _peaks_mb(os.getpid())


def peak_mb() -> float:
    """Sum of the peaks of the running processes of the tree: an upper bound."""
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
