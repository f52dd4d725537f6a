# SPDX-License-Identifier: Apache-2.0
"""Make the modules and type stubs of ustreamer/uprotocol/pb from the .proto files next to this script.

    python proto/generate.py [OUTDIR]

protoc only parses. Its own Python output would register every message in protobuf's default descriptor pool,
where it clashes with other libraries' uProtocol messages; and its stubs let a message field be assigned and
an enum be called, which fails at run time. So the descriptors go into a pool of our own, and the stubs say
what holds.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

PROTO: Final = Path(__file__).resolve().parent
PB: Final = PROTO.parent / "ustreamer" / "uprotocol" / "pb"
PACKAGE: Final = "ustreamer.uprotocol.pb"

# The module made from each file.
MODULES: Final = {
    "google/protobuf/any.proto": "google_any",
    "google/protobuf/timestamp.proto": "google_timestamp",
    "uprotocol/v1/uri.proto": "uri",
    "uprotocol/v1/uuid.proto": "uuid",
    "uprotocol/v1/ucode.proto": "ucode",
    "uprotocol/v1/ustatus.proto": "ustatus",
    "uprotocol/v1/uattributes.proto": "uattributes",
    "uprotocol/v1/umessage.proto": "umessage",
    "uprotocol/core/usubscription/v3/usubscription.proto": "usubscription_v3",
    "uprotocol/core/usubscription/v4/usubscription.proto": "usubscription_v4",
    "uprotocol/core/ustreamer/v1/ustreamer.proto": "ustreamer_v1",
}

# Messages to which the protobuf runtime adds methods, in every pool.
WELL_KNOWN: Final = {"google.protobuf.Any", "google.protobuf.Timestamp"}

SCALARS: Final = {
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_INT32: "int",
    FieldDescriptor.CPPTYPE_INT64: "int",
    FieldDescriptor.CPPTYPE_UINT32: "int",
    FieldDescriptor.CPPTYPE_UINT64: "int",
    # Enums are open: a number without a name arrives as that number.
    FieldDescriptor.CPPTYPE_ENUM: "int",
}


# ---------------------------------------------------------------------------------------------------- parsing


def compile_protos() -> list[FileDescriptor]:
    """Descriptors of all files in MODULES, each after those it imports.

    Raises CalledProcessError where protoc finds a mistake (its words are on stderr), and SystemExit where the
    files and MODULES differ.
    """
    sources = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "descriptors")
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", "--include_imports"]
        subprocess.run([*protoc, f"--descriptor_set_out={out}", *sources], check=True)
        files = FileDescriptorSet.FromString(out.read_bytes()).file
    if differing := sorted(MODULES.keys() ^ {file.name for file in files}):
        raise SystemExit(f"generate.py: only in MODULES or only below {PROTO}: {', '.join(differing)}")
    pool = DescriptorPool()
    return [pool.AddSerializedFile(file.SerializeToString(deterministic=True)) for file in files]


# ---------------------------------------------------------------------------------------------------- modules


def header(file: FileDescriptor) -> Iterator[str]:
    yield "# SPDX-License-Identifier: Apache-2.0"
    yield "# Made by proto/generate.py, do not edit. What the fields mean is said in"
    yield f"# {file.name}"


def own_imports(file: FileDescriptor) -> Iterator[str]:
    for name in sorted(MODULES[each.name] for each in file.dependencies):
        yield f"from {PACKAGE} import {name} as _{name}"


def python_module(file: FileDescriptor) -> Iterator[str]:
    yield from header(file)
    if file.enum_types_by_name:
        yield "from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper as _EnumTypeWrapper"
        yield ""
    yield from own_imports(file)  # before the pool is asked to take a file that needs theirs
    yield f"from {PACKAGE}._pool import POOL as _POOL, message_class as _message_class"
    yield ""
    yield "DESCRIPTOR = _POOL.AddSerializedFile("
    for start in range(0, len(file.serialized_pb), 60):
        yield f"    {file.serialized_pb[start : start + 60]!r}"
    yield ")"
    for name, enum in file.enum_types_by_name.items():
        yield ""
        yield f'{name} = _EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["{name}"])'
        for value in enum.values:
            yield f"{value.name} = {value.number}"
    yield ""
    for name in file.message_types_by_name:
        yield f'{name} = _message_class(DESCRIPTOR.message_types_by_name["{name}"], __name__)'


# ------------------------------------------------------------------------------------------------------ stubs


def stub(file: FileDescriptor) -> Iterator[str]:
    yield from header(file)
    yield "from collections.abc import Iterable as _Iterable, Mapping as _Mapping"
    yield "from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never"
    yield "from typing import final as _final"
    yield ""
    yield "from google.protobuf import descriptor as _descriptor, message as _message"
    yield "from google.protobuf.internal import containers as _containers"
    yield "from google.protobuf.internal import well_known_types as _well_known_types"
    yield ""
    yield from own_imports(file)
    yield ""
    yield "DESCRIPTOR: _descriptor.FileDescriptor"
    for enum in file.enum_types_by_name.values():
        yield ""
        yield from enum_stub(enum, f"{enum.name}: _Final[_{enum.name}]")
    for message in file.message_types_by_name.values():
        yield ""
        yield from message_stub(message)


def enum_stub(enum: EnumDescriptor, declaration: str) -> Iterator[str]:
    """An enum as what it is: an object with the values as numbers, neither a type nor callable."""
    values = [f"{value.name}: _Final = {value.number}" for value in enum.values]
    yield f"class _{enum.name}:"
    yield "    DESCRIPTOR: _descriptor.EnumDescriptor"
    yield from indented(values)
    yield "    def Name(self, number: int) -> str: ..."
    yield "    def Value(self, name: str) -> int: ..."
    yield "    def keys(self) -> list[str]: ..."
    yield "    def values(self) -> list[int]: ..."
    yield "    def items(self) -> list[tuple[str, int]]: ..."
    yield declaration
    yield from values


def message_stub(message: Descriptor) -> Iterator[str]:
    mixin = f", _well_known_types.{message.name}" if message.full_name in WELL_KNOWN else ""
    yield "@_final"
    yield f"class {message.name}(_message.Message{mixin}):"
    yield from indented(message_members(message))


def message_members(message: Descriptor) -> Iterator[str]:
    yield "DESCRIPTOR: _descriptor.Descriptor"
    for enum in message.enum_types:
        yield from enum_stub(enum, f"{enum.name}: _ClassVar[_{enum.name}]")
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from message_stub(nested)
    for field in message.fields:
        yield f"{field.name.upper()}_FIELD_NUMBER: _Final = {field.number}"
    for field in message.fields:
        yield from field_stub(field)
    arguments = [f"{field.name}: {argument_type(field)} | None = ..." for field in message.fields]
    yield f"def __init__({', '.join(['self', '*', *arguments] if arguments else ['self'])}) -> None: ..."
    # protoc makes a oneof named _x out of `optional x`.
    oneofs = [oneof for oneof in message.oneofs if not oneof.name.startswith("_")]
    for oneof in oneofs:
        members = literal(field.name for field in oneof.fields)
        yield f"def WhichOneof(self, oneof_group: {literal([oneof.name])}) -> {members} | None: ..."
    groups = [oneof.name for oneof in oneofs]
    present = [field.name for field in message.fields if field.has_presence]
    yield f"def HasField(self, field_name: {literal(present + groups)}) -> bool: ..."


def field_stub(field: FieldDescriptor) -> Iterator[str]:
    """An attribute where it may be assigned, a property where assignment raises AttributeError."""
    if field.is_repeated or field.message_type:
        yield "@property"
        yield f"def {field.name}(self) -> {field_type(field)}: ..."
    else:
        yield f"{field.name}: {field_type(field)}"


def field_type(field: FieldDescriptor) -> str:
    if entry := map_entry(field):
        kind = "Message" if entry["value"].message_type else "Scalar"
        return f"_containers.{kind}Map[{value_type(entry['key'])}, {value_type(entry['value'])}]"
    if field.is_repeated:
        kind = "Composite" if field.message_type else "Scalar"
        return f"_containers.Repeated{kind}FieldContainer[{value_type(field)}]"
    return value_type(field)


def argument_type(field: FieldDescriptor) -> str:
    if entry := map_entry(field):
        return f"_Mapping[{value_type(entry['key'])}, {value_type(entry['value'])}]"
    return f"_Iterable[{value_type(field)}]" if field.is_repeated else value_type(field)


def map_entry(field: FieldDescriptor) -> dict[str, FieldDescriptor]:
    """The fields "key" and "value" if field is a map, else nothing."""
    message = field.message_type
    return dict(message.fields_by_name) if message and message.GetOptions().map_entry else {}


def value_type(field: FieldDescriptor) -> str:
    """Type of the field's value, or of each of its values."""
    if message := field.message_type:
        name = message.full_name.removeprefix(f"{message.file.package}.")
        owner = field.containing_type
        near = owner is not None and owner.file.name == message.file.name
        return name if near else f"_{MODULES[message.file.name]}.{name}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "str" if field.type == FieldDescriptor.TYPE_STRING else "bytes"
    return SCALARS[field.cpp_type]


def literal(names: Iterable[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"_Literal[{quoted}]" if quoted else "_Never"


def indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


# ---------------------------------------------------------------------------------------------------- writing


def write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main(arguments: list[str]) -> None:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        raise SystemExit("usage: python proto/generate.py [OUTDIR]")
    directory = Path(arguments[0]) if arguments else PB
    files = compile_protos()
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        name = MODULES[file.name]
        write(directory / f"{name}.py", python_module(file))
        write(directory / f"{name}.pyi", stub(file))


if __name__ == "__main__":
    main(sys.argv[1:])
