# SPDX-License-Identifier: Apache-2.0
"""The file with the topics that their subscribers have stopped: `<state_dir>/stopped_topics`.

In and out: pairs of topic and subscriber. The file is a framed record with a JSON array of pairs; without pauses there
is no file. It is replaced as a whole, so a crash leaves the old or the new contents.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ustreamer.core.routing.paused_subscriptions import Pause
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import encode_frame, frame_body
from ustreamer.core.storage.store_files import DAMAGED, sibling, sync_directory
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.streamer")

NAME: Final = "stopped_topics"
_KEY: Final = NAME.encode()


class PauseFile:
    """The file in `state_dir`, which may not exist yet. One streamer at a time, by the lock of `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / NAME

    def load(self) -> list[Pause]:
        """The pauses of the last `save`. A damaged file is moved aside and logged: then nothing is paused."""
        extra = {"file": str(self._path)}
        try:
            value = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("streamer.stopped_topics_unreadable", extra=extra | {"reason": str(error)})  # noqa: TRY400
            return []
        try:
            found = msgspec.json.decode(frame_body(_KEY, value), type=list[tuple[str, str]])
            return [(UUri.parse(topic), UUri.parse(subscriber)) for topic, subscriber in found]
        except (StoreDamaged, msgspec.MsgspecError, UnicodeDecodeError, UStatusError) as error:
            log.error("streamer.stopped_topics_damaged", extra=extra | {"reason": str(error)})  # noqa: TRY400
            self._path.replace(sibling(self._path, DAMAGED))
            return []

    def save(self, pauses: Iterable[Pause]) -> None:
        """Replace the contents; they survive a power cut. Raises UStatusError(RESOURCE_EXHAUSTED), as on a full disk."""
        pairs = [(str(topic), str(subscriber)) for topic, subscriber in pauses]
        new = sibling(self._path, "new")
        try:
            if pairs:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with new.open("wb") as file:
                    file.write(encode_frame(_KEY, msgspec.json.encode(pairs)))
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)
            sync_directory(self._path.parent)
        except OSError as error:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED, f"{self._path}: cannot be written: {error}"
            ) from error
