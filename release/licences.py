# SPDX-License-Identifier: Apache-2.0
"""`python -m release.licences`: every package that a gateway may install has a permissive licence.

Starts at our distributions and their extras for run time, and follows the requirements of what is installed here. A
package that is not installed is named, and fails the check only if it is required.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS: Final = {
    "ustreamer": {"zenoh", "cli", "observe", "arxml"},
    "ustreamer-usubscription": set(),
    "ustreamer-throttle": set(),
    "ustreamer-recorder": set(),
    "ustreamer-tracing": set(),
    "ustreamer-mqtt": set(),
    "ustreamer-payloads": set(),
    "ustreamer-wamp": {"cryptosign"},
}
"""Our distributions, with the extras for run time. The pipeline runs on no gateway."""
PERMISSIVE: Final = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "MIT-0",
    "OLDAP-2.8",  # of lmdb: permissive, approved by the OSI
    "PSF-2.0",
    "Unlicense",
}
NAMES: Final = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "eclipse public license 2.0 (epl-2.0)": "EPL-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "openldap bsd-style license": "OLDAP-2.8",
    "openldap public license": "OLDAP-2.8",
}
"""Names before SPDX, in lower case."""
_NAMES: Final = {name.strip(" ()"): licence for name, licence in NAMES.items()}
FILES: Final = {
    frozenset({"LICENSE-APACHE", "LICENSE-MIT"}): "Apache-2.0 OR MIT",
}
"""The licence of a package that declares none and has these files: the convention of Rust."""
_CLASSIFIER: Final = "License :: OSI Approved :: "


def alternatives(text: str) -> list[str]:
    """The licences of which a user may choose one. `A AND B` stays one text, of which both parts must be permissive."""
    return [each.strip(" ()") for each in re.split(r"\bOR\b|/", text)]


def is_permissive(text: str) -> bool:
    """Whether a licence, an SPDX expression or an older name, permits everyone to use and change the package."""
    return any(
        all(_spdx(part) in PERMISSIVE for part in re.split(r"\bAND\b", choice))
        for choice in alternatives(text)
    )


def spdx(text: str) -> str:
    """A permissive licence as an SPDX expression."""
    choices = [" AND ".join(map(_spdx, re.split(r"\bAND\b", each))) for each in alternatives(text)]
    return " OR ".join(choices)


def _spdx(name: str) -> str:
    plain = name.strip(" ()")
    return _NAMES.get(plain.lower(), plain)


def licence_of(name: str) -> str:
    """The licence that an installed package declares; "" if it declares none."""
    return declared_licence(distribution(name).metadata)


def declared_licence(metadata: PackageMetadata) -> str:
    """The licence in the metadata of a package; "" if there is none."""
    if "License-Expression" in metadata:
        return str(metadata["License-Expression"])
    classifiers = [
        each.removeprefix(_CLASSIFIER)
        for each in metadata.get_all("Classifier") or ()
        if each.startswith(_CLASSIFIER)
    ]
    text = str(metadata["License"]) if "License" in metadata else ""
    if text and len(text) < 60:  # otherwise it is the whole licence
        return text
    files = frozenset(metadata.get_all("License-File") or ())
    return " OR ".join(classifiers) or FILES.get(files, "")


def required(name: str, extras: set[str]) -> Iterator[Requirement]:
    """The requirements of an installed package with these extras, on this machine."""
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def closure() -> tuple[dict[str, str], set[str]]:
    """Each package at run time with its licence, and those that are not installed."""
    found: dict[str, str] = {}
    absent: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, frozenset(extras)) for name, extras in OURS.items()]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = licence_of(name)
        except PackageNotFoundError:
            absent.add(name)
            continue
        waiting += [
            (canonicalize_name(each.name), frozenset(each.extras)) for each in required(name, set(extras))
        ]
    return found, absent


def main() -> int:
    found, absent = closure()
    wrong = {name: licence for name, licence in found.items() if not is_permissive(licence)}
    for name, licence in sorted(wrong.items()):
        print(
            f"{name}: {licence or 'no licence'}: expected one of {', '.join(sorted(PERMISSIVE))}",
            file=sys.stderr,
        )
    for name in sorted(absent):
        print(f"{name}: not installed, so not checked")
    for name, licence in sorted(found.items()):
        print(f"{name}: {licence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
