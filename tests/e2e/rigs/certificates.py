# SPDX-License-Identifier: Apache-2.0
"""Certificates made by the shipped recipe, and the shipped Zenoh files with these certificates."""

import subprocess
from pathlib import Path
from typing import Final

CONFIGS: Final = Path(__file__).parents[3] / "configs"
_SHIPPED_TLS: Final = "/etc/ustreamer/tls"


def make_certificates(directory: Path, *names: str) -> Path:
    """Run the recipe for these names; returns the directory."""
    recipe = CONFIGS / "zenoh" / "certificates.sh"
    subprocess.run([recipe, directory, *names], check=True, capture_output=True, timeout=30)
    return directory


def copy_zenoh_files(directory: Path, certificates: Path) -> None:
    """Copy `configs/zenoh` into `directory`, with these certificates."""
    (directory / "zenoh").mkdir()
    for file in (CONFIGS / "zenoh").glob("*.json5"):
        text = file.read_text(encoding="utf-8").replace(_SHIPPED_TLS, str(certificates))
        (directory / "zenoh" / file.name).write_text(text, encoding="utf-8")
