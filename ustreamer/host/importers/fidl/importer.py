# SPDX-License-Identifier: Apache-2.0
"""Reads Franca files together, and converts the interfaces that are deployed over SOME/IP."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ustreamer.host.importers.catalogue import (
    CatalogueEvent,
    CatalogueOptions,
    CatalogueService,
    ImportedCatalogue,
    LeftOut,
    SdAddress,
    import_catalogue,
    read_file,
    type_name,
)
from ustreamer.host.importers.fidl.deployments import DeploymentBlock, Property, parse_deployment
from ustreamer.host.importers.fidl.interfaces import FrancaInterface, FrancaType, parse_interfaces
from ustreamer.host.importers.fidl.tokens import Tokens
from ustreamer.host.importers.fidl.types import FrancaPayloadTypes
from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument

LIMIT_BYTES: Final = 4_000_000
MAX_FILES: Final = 256
_NAME: Final = "SomeIpInstanceID"
_ATTRIBUTE: Final = frozenset(
    {
        "SomeIpAttributeReliable",
        "SomeIpGetterID",
        "SomeIpGetterReliable",
        "SomeIpNotifierEventGroups",
        "SomeIpNotifierID",
        "SomeIpNotifierReliable",
        "SomeIpSetterID",
        "SomeIpSetterReliable",
    }
)
_BROADCAST: Final = frozenset({"SomeIpEventID", "SomeIpEventGroups", "SomeIpReliable"})
_METHOD: Final = frozenset({"SomeIpMethodID", "SomeIpReliable"})
_INSTANCE: Final = frozenset(
    {
        "InstanceId",
        _NAME,
        "SomeIpReliableUnicastPort",
        "SomeIpUnicastAddress",
        "SomeIpUnreliableUnicastPort",
    }
)


def import_files(paths: Sequence[Path], options: CatalogueOptions) -> ImportedCatalogue:
    """Convert the files, and those that they import by a relative name, together.

    Raises UStatusError: NOT_FOUND, or INVALID_ARGUMENT with the place of a mistake, or if no interface is deployed.
    """
    left_out = LeftOut()
    files = _Files(left_out)
    for path in paths:
        files.read(path)
    types = FrancaPayloadTypes(files.types, left_out)
    deployed = [
        service
        for definition in files.definitions
        if definition.kind == "interface"
        for service in _Deployed(definition, files, types, left_out).services()
    ]
    if not deployed:
        found = "".join(f"\n{line}" for line in left_out.lines())
        raise invalid_argument(
            f"{', '.join(map(str, paths))}: no interface is deployed over SOME/IP; expected "
            f"`define ... for interface` with SomeIpServiceID in a .fdepl file{found}"
        )
    return import_catalogue(deployed, types.described, SdAddress(), options, left_out)


class _Files:
    """The content of all files."""

    def __init__(self, left_out: LeftOut) -> None:
        self.interfaces: dict[str, FrancaInterface] = {}
        self.types: dict[str, FrancaType] = {}
        self.definitions: list[DeploymentBlock] = []
        self._read: set[Path] = set()
        self._left_out = left_out

    def read(self, path: Path) -> None:
        """Read a file and its imports, each file once."""
        waiting = [path]
        while waiting:
            each = waiting.pop(0)
            if each.resolve() in self._read:
                continue
            if len(self._read) >= MAX_FILES:
                raise invalid_argument(f"{each}: expected at most {MAX_FILES} files")
            self._read.add(each.resolve())
            for name in self._parse(each):
                imported = each.parent / name
                if ":" not in name and imported.is_file():
                    waiting.append(imported)
                elif "deployment_spec" not in name:
                    self._left_out.note(str(each), f"import {name!r}: there is no such file next to it")

    def _parse(self, path: Path) -> list[str]:
        """The imports of a file, whose content is stored."""
        raw = read_file(path, LIMIT_BYTES)
        try:
            tokens = Tokens(str(path), raw.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise invalid_argument(f"{path}: byte {error.start}: not UTF-8") from error
        if path.suffix == ".fdepl":
            deployment = parse_deployment(tokens)
            self.definitions += deployment.definitions
            return deployment.imports
        if path.suffix != ".fidl":
            raise invalid_argument(f"{path}: expected a file named .fidl or .fdepl")
        file = parse_interfaces(tokens)
        self.interfaces.update((each.name, each) for each in file.interfaces)
        self.types.update(file.types)
        return file.imports


class _Deployed:
    """An interface with its deployment."""

    def __init__(
        self, definition: DeploymentBlock, files: _Files, types: FrancaPayloadTypes, left_out: LeftOut
    ) -> None:
        self._definition, self._files, self._types, self._left_out = definition, files, types, left_out

    def services(self) -> Iterator[CatalogueService]:
        """One service for each instance at a provider. An invalid one is noted."""
        definition = self._definition
        interface = self._files.interfaces.get(definition.name)
        if interface is None:
            self._left_out.note(
                definition.place, f"left out: interface {definition.name} is in no .fidl file"
            )
            return
        if "SomeIpServiceID" not in definition.properties:
            self._left_out.note(definition.place, "left out: SomeIpServiceID: missing")
            return
        instances = [
            (provider, block)
            for provider in self._files.definitions
            if provider.kind == "provider"
            for block in provider.blocks
            if block.name == definition.name
        ]
        if not instances:
            self._left_out.note(definition.place, "no provider has an instance of it: instance 1 is assumed")
        try:
            service = self._service(interface)
            if not instances:
                yield service
            for provider, block in instances:
                yield self._instance(provider, block, service)
        except UStatusError as error:
            self._left_out.note(definition.place, f"left out: {error.message}")

    def _service(self, interface: FrancaInterface) -> CatalogueService:
        definition = self._definition
        if interface.base is not None:
            self._left_out.note(interface.place, f"what it inherits from {interface.base.name} is left out")
        self._note_unknown(definition, frozenset({"SomeIpServiceID"}))
        service = CatalogueService(
            place=definition.place,
            service=_number(definition.properties["SomeIpServiceID"]),
            major=interface.major,
            minor=interface.minor,
        )
        for block in definition.blocks:
            match block.kind:
                case "attribute":
                    self._add_attribute(interface, block, service)
                case "broadcast":
                    self._add_broadcast(interface, block, service)
                case "method":
                    self._add_method(interface, block, service)
                case _:
                    self._left_out.note(
                        block.place, f"{block.kind or block.name}: its properties are not carried over"
                    )
        return service

    def _instance(
        self, provider: DeploymentBlock, block: DeploymentBlock, service: CatalogueService
    ) -> CatalogueService:
        self._note_unknown(block, _INSTANCE)
        properties = block.properties
        if _NAME not in properties:
            raise invalid_argument(f"{block.place}: {_NAME}: missing, expected a number")
        address = properties.get("SomeIpUnicastAddress")
        ports = [properties.get(f"SomeIp{kind}UnicastPort") for kind in ("Unreliable", "Reliable")]
        udp, tcp = (None if each is None else _number(each) or None for each in ports)
        return CatalogueService(
            place=block.place,
            service=service.service,
            instance=_number(properties[_NAME]),
            major=service.major,
            minor=service.minor,
            provider=provider.name,
            address=None if address is None else str(address.value),
            udp=udp,
            tcp=tcp,
            events=service.events,
            methods=service.methods,
        )

    # --- attributes, broadcasts and methods ---------------------------------------------------------------------------

    def _add_attribute(
        self, interface: FrancaInterface, block: DeploymentBlock, service: CatalogueService
    ) -> None:
        self._note_unknown(block, _ATTRIBUTE)
        use = interface.attributes.get(block.name)
        if use is None:
            self._left_out.note(block.place, f"left out: {interface.name} has no attribute {block.name}")
            return
        properties = block.properties
        for name in ("Getter", "Setter"):
            if f"SomeIp{name}ID" in properties:
                protocol = _protocol(block, f"SomeIp{name}Reliable", "SomeIpAttributeReliable")
                service.methods.append({"id": _number(properties[f"SomeIp{name}ID"]), **protocol})
        if "SomeIpNotifierID" in properties:
            protocol = _protocol(block, "SomeIpNotifierReliable", "SomeIpAttributeReliable")
            type = self._types.of_attribute(use, block.place)
            event = _event(block, "SomeIpNotifierID", "SomeIpNotifierEventGroups", protocol, type)
            event.keys["field"] = True
            service.events.append(event)

    def _add_broadcast(
        self, interface: FrancaInterface, block: DeploymentBlock, service: CatalogueService
    ) -> None:
        self._note_unknown(block, _BROADCAST)
        arguments = interface.broadcasts.get(block.name)
        if arguments is None or "SomeIpEventID" not in block.properties:
            why = (
                f"{interface.name} has no broadcast {block.name}"
                if arguments is None
                else "SomeIpEventID: missing"
            )
            self._left_out.note(block.place, f"left out: {why}")
            return
        name = type_name(f"{interface.name}.{block.name}".rpartition(".")[2] + "_arguments")
        type = self._types.of_arguments(name, arguments, block.place)
        protocol = _protocol(block, "SomeIpReliable")
        service.events.append(_event(block, "SomeIpEventID", "SomeIpEventGroups", protocol, type))

    def _add_method(
        self, interface: FrancaInterface, block: DeploymentBlock, service: CatalogueService
    ) -> None:
        self._note_unknown(block, _METHOD)
        is_one_way = interface.methods.get(block.name)
        if is_one_way is None or "SomeIpMethodID" not in block.properties:
            why = (
                f"{interface.name} has no method {block.name}"
                if is_one_way is None
                else "SomeIpMethodID: missing"
            )
            self._left_out.note(block.place, f"left out: {why}")
            return
        method = {"id": _number(block.properties["SomeIpMethodID"]), **_protocol(block, "SomeIpReliable")}
        service.methods.append(method | {"no_return": True} if is_one_way else method)

    def _note_unknown(self, block: DeploymentBlock, known: frozenset[str]) -> None:
        for each in block.properties.values():
            if each.name not in known:
                self._left_out.note(each.place, f"{each.name}: not carried over")
        for inner in block.blocks if block.kind in {"attribute", "broadcast", "method", "instance"} else ():
            self._left_out.note(inner.place, f"{inner.name}: its properties are not carried over")


def _event(
    block: DeploymentBlock, id: str, groups: str, protocol: dict[str, Any], type: Any
) -> CatalogueEvent:
    listed = block.properties.get(groups)
    values = () if listed is None else listed.value if isinstance(listed.value, tuple) else (listed.value,)
    numbers = [_number(Property(groups, each, listed.place)) for each in values if listed is not None]
    return CatalogueEvent(
        id=_number(block.properties[id]), eventgroups=list(dict.fromkeys(numbers)), keys=protocol, type=type
    )


def _protocol(block: DeploymentBlock, *names: str) -> dict[str, Any]:
    """`protocol` by the first of these properties that is set. CommonAPI's default is UDP."""
    for name in names:
        found = block.properties.get(name)
        if found is not None:
            if not isinstance(found.value, bool):
                raise invalid_argument(f"{found.place}: {name} = {found.value!r}, expected true or false")
            return {"protocol": "tcp" if found.value else "udp"}
    return {}


def _number(found: Property) -> int:
    """The number of a property. Raises UStatusError with its place."""
    if isinstance(found.value, bool) or not isinstance(found.value, int):
        raise invalid_argument(f"{found.place}: {found.name} = {found.value!r}, expected a number")
    return found.value
