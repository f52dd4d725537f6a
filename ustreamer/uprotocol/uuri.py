# SPDX-License-Identifier: Apache-2.0
"""UUri: the address of every uEntity, method and topic (uProtocol `basics/uri.adoc`).

    up://authority/ue_id/ue_version_major/resource_id        ue_id = instance << 16 | type

Values are checked when they are parsed from text or protobuf; matching and hashing then trust them.
"""

import ipaddress
import re
from typing import Final

import msgspec

from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.ustatus import invalid_argument

ANY_AUTHORITY: Final = "*"
ANY_TYPE: Final = 0xFFFF
ANY_INSTANCE: Final = 0xFFFF
ANY_ENTITY: Final = 0xFFFF_FFFF
ANY_VERSION: Final = 0xFF
ANY_RESOURCE: Final = 0xFFFF

MAX_AUTHORITY: Final = 128  # characters [impl->dsn~uri-authority-name-length~1]
FIRST_TOPIC: Final = 0x8000

_REGISTERED_NAME: Final = re.compile(r"[a-z0-9\-._~]{1,128}")
_HEX: Final = re.compile(r"[0-9A-Fa-f]+")


class UUri(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """An address or, with wildcards, a pattern of addresses.

    `authority_name` may be empty (local) or `*`; `ue_id` is u32, `ue_version_major` u8, `resource_id` u16. The hash is
    cached because every message needs a lookup of its topic (0.04 us instead of 0.15).
    """

    authority_name: str = ""
    ue_id: int = 0
    ue_version_major: int = 0
    resource_id: int = 0

    # --- text ---------------------------------------------------------------------------------------------------------

    @classmethod
    def parse(cls, text: str) -> "UUri":
        """Parse `up://authority/ue/version/resource`, with or without `up:`; INVALID_ARGUMENT names the error."""
        authority, path = _split(text)
        segments = path.split("/")
        if len(segments) != 3:
            raise invalid_argument(
                f"UUri {text!r}: expected three segments ue_id/version/resource, found {len(segments)}"
            )
        uuri = cls(
            authority,
            _number(text, "ue_id", segments[0], ANY_ENTITY),
            _number(text, "version", segments[1], ANY_VERSION),
            _number(text, "resource", segments[2], ANY_RESOURCE),
        )
        if authority:
            check_authority(authority, text)
        return uuri

    def __str__(self) -> str:
        head = f"up://{self.authority_name}" if self.authority_name else "up:"
        return f"{head}/{self.ue_id:X}/{self.ue_version_major:X}/{self.resource_id:X}"

    # --- protobuf -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_pb(cls, message: uri.UUri) -> "UUri":
        """Convert and check a protobuf UUri; INVALID_ARGUMENT if a field is out of its range."""
        uuri = cls(message.authority_name, message.ue_id, message.ue_version_major, message.resource_id)
        uuri.check()
        return uuri

    def to_pb(self) -> uri.UUri:
        """The address as a protobuf message."""
        return uri.UUri(
            authority_name=self.authority_name,
            ue_id=self.ue_id,
            ue_version_major=self.ue_version_major,
            resource_id=self.resource_id,
        )

    def check(self) -> None:
        """INVALID_ARGUMENT unless every part is in its range and the authority is well formed."""
        # A chain of comparisons: 0.1 us, a loop takes 0.5.
        if not (
            0 <= self.ue_id <= ANY_ENTITY
            and 0 <= self.ue_version_major <= ANY_VERSION
            and 0 <= self.resource_id <= ANY_RESOURCE
        ):
            self._refuse_number()
        if self.authority_name:
            check_authority(self.authority_name, self)

    def _refuse_number(self) -> None:
        for name, value, top in (
            ("ue_id", self.ue_id, ANY_ENTITY),
            ("ue_version_major", self.ue_version_major, ANY_VERSION),
            ("resource_id", self.resource_id, ANY_RESOURCE),
        ):
            if not 0 <= value <= top:
                raise invalid_argument(f"UUri {self}: {name} 0x{value:X} is not in 0..0x{top:X}")

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def ue_type(self) -> int:
        """The service id: bits 15..0 of ue_id."""
        return self.ue_id & 0xFFFF

    @property
    def ue_instance(self) -> int:
        """The service instance: bits 31..16 of ue_id."""
        return self.ue_id >> 16

    @property
    def is_topic(self) -> bool:
        """Whether the resource is a topic: 8000 to FFFE."""
        return FIRST_TOPIC <= self.resource_id < ANY_RESOURCE

    @property
    def is_method(self) -> bool:
        """Whether the resource is a method: 1 to 7FFF."""
        return 0 < self.resource_id < FIRST_TOPIC

    @property
    def is_specific(self) -> bool:
        """True if no part is a wildcard."""
        return not (
            self.authority_name == ANY_AUTHORITY
            or self.ue_id >> 16 == ANY_INSTANCE
            or self.ue_id & 0xFFFF == ANY_TYPE
            or self.ue_version_major == ANY_VERSION
            or self.resource_id == ANY_RESOURCE
        )

    def wildcard(self) -> str | None:
        """The name of the first part that is a wildcard, in the order of the specification; None if there is none."""
        if self.authority_name == ANY_AUTHORITY:
            return "authority"
        if (
            self.ue_id >> 16 == ANY_INSTANCE
        ):  # not the properties: two calls fewer, several times for each message
            return "instance"
        if self.ue_id & 0xFFFF == ANY_TYPE:
            return "type"
        if self.ue_version_major == ANY_VERSION:
            return "version"
        if self.resource_id == ANY_RESOURCE:
            return "resource"
        return None

    def with_authority(self, authority: str) -> "UUri":
        """This address, with `authority` instead of an empty one."""
        if self.authority_name:
            return self
        return UUri(authority, self.ue_id, self.ue_version_major, self.resource_id)

    def with_resource(self, resource_id: int) -> "UUri":
        """The address of another resource of the same entity."""
        return UUri(self.authority_name, self.ue_id, self.ue_version_major, resource_id)

    # --- patterns -----------------------------------------------------------------------------------------------------

    def matches(self, candidate: "UUri") -> bool:
        """True if this pattern matches `candidate`; only wildcards of the pattern count.

        [impl->dsn~uri-pattern-matching~2]
        """
        return (
            self.authority_name in (ANY_AUTHORITY, candidate.authority_name)
            and self.ue_id & 0xFFFF in (ANY_TYPE, candidate.ue_id & 0xFFFF)
            and self.ue_id >> 16 in (ANY_INSTANCE, candidate.ue_id >> 16)
            and self.ue_version_major in (ANY_VERSION, candidate.ue_version_major)
            and self.resource_id in (ANY_RESOURCE, candidate.resource_id)
        )


ANY: Final = UUri(ANY_AUTHORITY, ANY_ENTITY, ANY_VERSION, ANY_RESOURCE)
"""The pattern of every address."""


def any_at(authority: str) -> UUri:
    """The pattern of every address at one authority."""
    return UUri(authority, ANY_ENTITY, ANY_VERSION, ANY_RESOURCE)


def _split(text: str) -> tuple[str, str]:
    """(authority, path without its leading slash); '' without an authority."""
    rest = text.removeprefix("up:")
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        if not authority or not slash:
            raise invalid_argument(f"UUri {text!r}: expected //authority/ue_id/version/resource")
        return authority, path
    if not rest.startswith("/"):
        raise invalid_argument(f"UUri {text!r}: expected up://authority/... or up:/..., no other scheme")
    return "", rest[1:]


def _number(text: str, name: str, digits: str, top: int) -> int:
    # int(x, 16) alone accepts "0x1", "1_0", " 1 " and "+1".
    if not _HEX.fullmatch(digits) or len(digits) > 8 or int(digits, 16) > top:
        raise invalid_argument(f"UUri {text!r}: {name} {digits!r} is not a hexadecimal number in 0..{top:X}")
    return int(digits, 16)


def check_authority(authority: str, where: object) -> None:
    """INVALID_ARGUMENT unless `authority` is a registered name, an IP literal or the wildcard (uri.adoc, 1.4)."""
    if authority == ANY_AUTHORITY or _REGISTERED_NAME.fullmatch(authority) or _is_ip_literal(authority):
        return
    raise invalid_argument(
        f"UUri {str(where)!r}: authority {authority!r} is not '*', an IP address or at most {MAX_AUTHORITY} "
        "characters of a-z 0-9 - . _ ~"
    )


def _is_ip_literal(authority: str) -> bool:
    if not (authority.startswith("[") and authority.endswith("]")) or "%" in authority:
        return False  # an IPv4 address is a registered name too; a zone (%eth0) is valid on one machine only
    try:
        ipaddress.IPv6Address(authority[1:-1])
    except ValueError:
        return False
    return True


def check_filters(source: UUri, sink: UUri | None) -> None:
    """INVALID_ARGUMENT for listener filters that can match no message (uProtocol `verify_filter_criteria`)."""
    if sink is None:
        if source.resource_id < FIRST_TOPIC:
            raise invalid_argument(
                f"filter source {source}: without a sink filter it must name a topic or FFFF"
            )
    elif source.resource_id == 0 and sink.resource_id == 0:
        raise invalid_argument(f"filters {source} and {sink}: resource 0 on both sides matches no message")
    elif sink.is_method and source.resource_id not in (0, ANY_RESOURCE):
        raise invalid_argument(f"filter source {source}: requests to {sink} come from resource 0 (or FFFF)")


__all__ = [
    "ANY",
    "ANY_AUTHORITY",
    "ANY_ENTITY",
    "ANY_INSTANCE",
    "ANY_RESOURCE",
    "ANY_TYPE",
    "ANY_VERSION",
    "FIRST_TOPIC",
    "MAX_AUTHORITY",
    "UUri",
    "any_at",
    "check_authority",
    "check_filters",
]
