# SPDX-License-Identifier: Apache-2.0
"""Secrets of a Zenoh configuration are found in the file and in the files that it names."""

from pathlib import Path

import zenoh

from ustreamer.transports.zenoh.private_files import exposed_secrets


def test_each_secret_that_everyone_can_read_has_a_sentence(tmp_path: Path) -> None:
    key = tmp_path / "node.key"
    file = tmp_path / "zenoh.json5"
    settings = zenoh.Config()
    settings.insert_json5("transport/link/tls/listen_private_key", f'"{key}"')
    settings.insert_json5("transport/link/tls/connect_private_key_base64", '"c2VjcmV0"')
    assert list(exposed_secrets(settings, file)) == [], "neither file is there"
    key.touch(0o644)
    file.touch(0o644)
    found = list(exposed_secrets(settings, file))
    assert [each.split(": ")[1] for each in found] == [
        f"every user of this machine can read {key}, which is transport/link/tls/listen_private_key of {file}",
        f"every user of this machine can read transport/link/tls/connect_private_key_base64 in {file}",
    ]
