# SPDX-License-Identifier: Apache-2.0
"""Accessors of AUTOSAR elements: children by path, values, numbers and targets of references."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ustreamer.host.importers.catalogue import LeftOut

if TYPE_CHECKING:
    from autosar_data import Element

_COMMON: Final = frozenset(
    {
        "ADMIN-DATA",
        "ANNOTATIONS",
        "CATEGORY",
        "DESC",
        "INTRODUCTION",
        "LONG-NAME",
        "SHORT-LABEL",
        "SHORT-NAME",
        "SHORT-NAME-FRAGMENTS",
        "SHORT-NAME-PATTERN",
        "VARIATION-POINT",
    }
)
"""Sub-elements of every element, which have no effect on the network."""


class InvalidArxml(ValueError):
    """A value that cannot be converted."""


def child(element: "Element", path: str) -> "Element | None":
    """The first sub-element at a path such as "TP-CONFIGURATION/UDP-TP"."""
    found: Element | None = element
    for name in path.split("/"):
        found = None if found is None else found.get_sub_element(name)
    return found


def children(element: "Element", path: str) -> "Iterator[Element]":
    """The sub-elements of the element at a path, such as those of "EVENT-DEPLOYMENTS"."""
    found = child(element, path)
    if found is not None:
        yield from found.sub_elements


def text(element: "Element | None", path: str = "") -> str | None:
    """The value of an element or of a sub-element; None without one."""
    found = child(element, path) if element is not None and path else element
    value = None if found is None else found.character_data
    return None if value is None else str(getattr(value, "name", value)).strip()


def number(element: "Element | None", path: str = "") -> int | None:
    """As `text`, as a number: AUTOSAR writes 10, 0x0A, 0b1010 or 012. Raises InvalidArxml if it is none."""
    value = text(element, path)
    if value is None:
        return None
    lower = value.lower()
    octal = len(lower) > 1 and lower.startswith("0") and lower.isdigit()
    try:
        return int(lower, 8 if octal else 0)
    except ValueError:
        raise InvalidArxml(f"{path or place_of(element)}: {value[:60]!r}: expected a number") from None


def required_number(element: "Element", path: str) -> int:
    """As `number`. Raises InvalidArxml if it is missing."""
    found = number(element, path)
    if found is None:
        raise InvalidArxml(f"{path}: missing; expected a number")
    return found


def milliseconds(element: "Element | None", path: str) -> int | None:
    """A time in seconds, in milliseconds. Raises InvalidArxml."""
    value = text(element, path)
    try:
        return None if value is None else round(float(value) * 1_000)
    except (ValueError, OverflowError):
        raise InvalidArxml(f"{path}: {value!r}: expected seconds") from None


def target(element: "Element | None", path: str = "") -> "Element | None":
    """The element to which a reference points; None without a reference, or with one to nothing."""
    from autosar_data import AutosarDataError

    found = child(element, path) if element is not None and path else element
    if found is None:
        return None
    try:
        return found.reference_target
    except AutosarDataError:
        return None


def name_of(element: "Element") -> str:
    return element.item_name or element.element_name


def place_of(element: "Element | None") -> str:
    """The AUTOSAR path of an element or of its nearest named parent."""
    from autosar_data import AutosarDataError

    while element is not None:
        try:
            return element.path
        except AutosarDataError:
            element = element.parent
    return "?"


def ancestor(element: "Element | None", *names: str) -> "Element | None":
    """The nearest element above that has one of these element names."""
    while element is not None and element.element_name not in names:
        element = element.parent
    return element


def note_others(
    element: "Element", known: frozenset[str], reasons: dict[str, str], left_out: LeftOut
) -> None:
    """Note each sub-element that is neither read nor without an effect."""
    for each in element.sub_elements:
        name = each.element_name
        if name not in known and name not in _COMMON:
            left_out.note(f"{place_of(element)}, {name}", reasons.get(name, "not carried over"))
