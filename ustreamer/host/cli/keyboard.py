# SPDX-License-Identifier: Apache-2.0
"""What ends a command that fills the terminal: a key, or a signal. The terminal is restored in both cases."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread, main_thread
from types import FrameType
from typing import Final

_JOIN_S: Final = 1.0


@contextmanager
def ended_by(key: str) -> Iterator[None]:
    """Within the block `key` interrupts as Ctrl-C does, and SIGTERM and SIGHUP raise SystemExit.

    Without a terminal at stdin, or in the background, no key is read. From the main thread only.
    """
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with _reading_keys(key):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _reading_keys(key: str) -> Iterator[None]:
    try:
        terminal = sys.stdin.fileno()
        if os.tcgetpgrp(terminal) != os.getpgrp():
            raise OSError("in the background")  # to change the terminal would stop this process
        settings = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield
        return
    ended, end = os.pipe()
    reader = Thread(target=_interrupt_at, args=(terminal, key.encode(), ended), name="keys", daemon=True)
    try:
        tty.setcbreak(terminal)
        reader.start()
        yield
    finally:
        os.close(end)
        reader.join(_JOIN_S)
        os.close(ended)
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


def _interrupt_at(terminal: int, key: bytes, ended: int) -> None:
    """Interrupt the main thread, which may wait in a system call, once the key is pressed; end when `ended` closes."""
    while True:
        readable, _, _ = select.select([terminal, ended], [], [])
        if ended in readable:
            return
        typed = os.read(terminal, 64)
        if not typed:
            return
        if key in typed:
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
            return
