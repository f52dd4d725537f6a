# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates of a Zenoh configuration: secrets that every user can read, and files that Zenoh cannot use.

In: the settings of a session and the file they come from. Out: sentences for `ustreamer check`.
"""

import ssl
from collections.abc import Iterator, Sequence
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
_TLS: Final = "transport/link/tls/"
_KEY, _CERTIFICATE, _AUTHORITY = (
    f"{_TLS}{each}" for each in ("listen_private_key", "listen_certificate", "root_ca_certificate")
)


def exposed_secrets(settings: zenoh.Config, file: Path) -> Iterator[str]:
    """A sentence for each secret that every user can read."""
    for path in _FILES:
        name = _setting(settings, path)
        if isinstance(name, str) and readable_by_all(Path(name)):
            yield f"config: every user of this machine can read {name}, which is {path} of {file}: chmod 600 it"
    for path in _TEXTS:
        if _setting(settings, path) is not None and readable_by_all(file):
            yield f"config: every user of this machine can read {path} in {file}: chmod 600 the file"


def unusable_certificates(settings: zenoh.Config, listen: Sequence[str]) -> Iterator[str]:
    """A sentence for each TLS file with which Zenoh cannot open the `listen` locators.

    Texts in place of files (`..._base64`), and files that a locator names itself, are not read.
    """
    encrypted = [each for each in listen if each.startswith(("tls/", "quic/")) and "_private_key" not in each]
    if not encrypted:
        return
    needed = [_KEY, _CERTIFICATE, *([_AUTHORITY] if _setting(settings, f"{_TLS}enable_mtls") else [])]
    files: dict[str, Path] = {}
    for path in needed:
        name = _setting(settings, path)
        if isinstance(name, str):
            files[path] = Path(name)
        elif _setting(settings, f"{path}_base64") is None:
            yield f"config: {encrypted[0]} needs {path}: set it in the file"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if _KEY in files and _CERTIFICATE in files:
            context.load_cert_chain(files[_CERTIFICATE], files[_KEY], password="")
        if _AUTHORITY in files:
            context.load_verify_locations(files[_AUTHORITY])
    except OSError as error:
        names = ", ".join(str(each) for each in files.values())
        yield f"config: {encrypted[0]} cannot use {names}: {error}: expected PEM, and a key without password"


def _setting(settings: zenoh.Config, path: str) -> object:
    try:
        return msgspec.json.decode(settings.get_json(path))
    except zenoh.ZError:  # this version of Zenoh does not have it
        return None
