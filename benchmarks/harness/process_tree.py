# SPDX-License-Identifier: Apache-2.0
"""CPU and memory of this process and its descendants. Other load changes elapsed time, but not these. Linux."""

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MAX_READS: Final = 100


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


def _descendants() -> list[tuple[int, list[str]]]:
    """This process and its descendants, as if read at one moment: a parent has the CPU time of children that ended."""
    for _ in range(_MAX_READS):
        every = {
            int(each.name): _stat_fields(int(each.name)) for each in _PROC.iterdir() if each.name.isdigit()
        }
        found = _tree_of(os.getpid(), {pid: fields for pid, fields in every.items() if fields})
        if all(every.values()) and all((_PROC / str(pid)).exists() for pid, _ in found):
            return found
    raise RuntimeError(f"processes ended during each of {_MAX_READS} reads of {_PROC}")


def _tree_of(root: int, every: dict[int, list[str]]) -> list[tuple[int, list[str]]]:
    parents = {pid: int(fields[1]) for pid, fields in every.items()}
    found = []
    for pid, fields in every.items():
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root:
            found.append((pid, fields))
    return found


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
