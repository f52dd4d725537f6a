# SPDX-License-Identifier: Apache-2.0
"""Private keys and passwords of a Zenoh configuration that every user of this machine can read.

In flow the settings of a session and the file they come from. Out flow sentences for `ustreamer check`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import zenoh

from ustreamer.transport_port import readable_by_all

_FILES: Final = (
    "transport/link/tls/listen_private_key",
    "transport/link/tls/connect_private_key",
    "transport/auth/pubkey/private_key_file",
    "transport/auth/usrpwd/dictionary_file",
)
"""Settings that name a file with a secret."""
_TEXTS: Final = (
    "transport/link/tls/listen_private_key_base64",
    "transport/link/tls/connect_private_key_base64",
    "transport/auth/pubkey/private_key_pem",
    "transport/auth/usrpwd/password",
)
"""Settings that are a secret."""


def exposed_secrets(settings: zenoh.Config, file: Path) -> Iterator[str]:
    """A sentence for each secret that every user can read."""
    for path in _FILES:
        name = _setting(settings, path)
        if isinstance(name, str) and readable_by_all(Path(name)):
            yield f"config: every user of this machine can read {name}, which is {path} of {file}: chmod 600 it"
    for path in _TEXTS:
        if _setting(settings, path) is not None and readable_by_all(file):
            yield f"config: every user of this machine can read {path} in {file}: chmod 600 the file"


def _setting(settings: zenoh.Config, path: str) -> object:
    try:
        return msgspec.json.decode(settings.get_json(path))
    except zenoh.ZError:  # this version of Zenoh does not have it
        return None
