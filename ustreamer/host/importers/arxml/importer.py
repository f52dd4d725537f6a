# SPDX-License-Identifier: Apache-2.0
"""Reads AUTOSAR files as one model, and converts what they deploy over SOME/IP."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ustreamer.host.importers.arxml import adaptive, classic
from ustreamer.host.importers.arxml.types import AutosarPayloadTypes
from ustreamer.host.importers.catalogue import (
    CatalogueOptions,
    ImportedCatalogue,
    LeftOut,
    SdAddress,
    import_catalogue,
    read_file,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument

if TYPE_CHECKING:
    from autosar_data import AutosarModel

LIMIT_BYTES: Final = 256_000_000
"""The limit of one file. A vehicle's system description has tens of megabytes."""
_PANIC: Final = "<?>"
"""The library's Rust code panics at it, and prints a stack."""
_MAX_WARNINGS: Final = 20


def import_files(paths: Sequence[Path], options: CatalogueOptions) -> ImportedCatalogue:
    """Convert the files together: one may refer to another.

    Raises UStatusError: NOT_FOUND, UNIMPLEMENTED without autosar-data, or INVALID_ARGUMENT if a file is no AUTOSAR file
    or no service is deployed.
    """
    left_out = LeftOut()
    model = _load(paths, left_out)
    types = AutosarPayloadTypes(left_out)
    services = [
        *adaptive.read_services(model, types, left_out),
        *classic.read_services(model, left_out),
    ]
    if not services:
        found = "".join(f"\n{line}" for line in left_out.lines()[:_MAX_WARNINGS])
        raise invalid_argument(
            f"{', '.join(map(str, paths))}: no service is deployed over SOME/IP; expected a valid "
            f"PROVIDED-SOMEIP-SERVICE-INSTANCE (Adaptive) or PROVIDED-SERVICE-INSTANCE (Classic){found}"
        )
    sd = adaptive.sd_address(model)
    if sd == SdAddress():
        sd = classic.sd_address(model)
    return import_catalogue(services, types.described, sd, options, left_out)


def _load(paths: Sequence[Path], left_out: LeftOut) -> "AutosarModel":
    try:
        from autosar_data import AutosarDataError, AutosarModel
    except ImportError as error:
        raise UStatusError(
            UCode.UNIMPLEMENTED,
            "AUTOSAR files need autosar-data: install the wheel file of ustreamer[arxml]: docs/install.md",
        ) from error
    model = AutosarModel()
    for path in paths:
        raw = read_file(path, LIMIT_BYTES)
        try:
            content = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise invalid_argument(
                f"{path}: byte {error.start}: not UTF-8, the encoding of AUTOSAR files"
            ) from error
        if (at := content.find(_PANIC)) >= 0:
            line = content.count("\n", 0, at) + 1
            raise invalid_argument(f"{path}: line {line}: {_PANIC} is no XML; expected a name after <?")
        try:
            _, warnings = model.load_buffer(content, str(path), strict=False)
        except BaseException as error:
            # Damage can make the Rust code of the library panic: pyo3 has a BaseException of a class without a module.
            if not isinstance(error, AutosarDataError) and type(error).__name__ != "PanicException":
                raise
            raise invalid_argument(f"{path}: invalid AUTOSAR file: {error}") from error
        for warning in warnings[:_MAX_WARNINGS]:
            left_out.note(str(path), str(warning))
        if len(warnings) > _MAX_WARNINGS:
            left_out.note(str(path), f"{len(warnings) - _MAX_WARNINGS} more violations of the schema")
    return model
