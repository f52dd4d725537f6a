# SPDX-License-Identifier: Apache-2.0
"""Parses Franca interfaces (.fidl): versions, attributes, methods, broadcasts, and types of interfaces and collections."""

from typing import Final

import msgspec

from ustreamer.host.importers.fidl.tokens import Token, Tokens

_FLAGS: Final = frozenset(
    {"readonly", "noSubscriptions", "fireAndForget", "selective", "polymorphic", "public"}
)


class TypeUse(msgspec.Struct, frozen=True):
    """The use of a type, as an array or not. `scope` is the interface or collection around it."""

    name: str
    is_array: bool
    scope: str
    place: str


class FrancaMember(msgspec.Struct, frozen=True):
    """A member of a structure or an argument of a broadcast."""

    name: str
    type: TypeUse


class FrancaType(msgspec.Struct, frozen=True):
    """A defined type. `kind` is struct, union, enumeration, array, typedef or map. `of` is that of arrays and typedefs."""

    kind: str
    members: tuple[FrancaMember, ...] = ()
    values: tuple[tuple[str, int], ...] = ()
    of: TypeUse | None = None
    base: TypeUse | None = None


class FrancaInterface(msgspec.Struct):
    """An interface with its qualified name."""

    name: str
    place: str
    major: int = 0
    minor: int = 0
    attributes: dict[str, TypeUse] = {}
    methods: dict[str, bool] = {}
    """By name, whether the method is `fireAndForget`."""
    broadcasts: dict[str, tuple[FrancaMember, ...]] = {}
    base: TypeUse | None = None


class FrancaFile(msgspec.Struct):
    """The content of one file."""

    package: str = ""
    imports: list[str] = []
    interfaces: list[FrancaInterface] = []
    types: dict[str, FrancaType] = {}
    """By qualified name."""


def parse_interfaces(tokens: Tokens) -> FrancaFile:
    """Parse a .fidl file. Raises UStatusError with the place of the first mistake."""
    return _Parser(tokens).parse()


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._file = FrancaFile()

    def parse(self) -> FrancaFile:
        tokens = self._tokens
        tokens.expect("package")
        self._file.package = tokens.expect_name("the name of the package").text
        while tokens.accept("import"):
            self._import()
        while tokens.next.kind != "end":
            tokens.accept("public")
            keyword = tokens.take()
            if keyword.text == "interface":
                self._interface()
            elif keyword.text == "typeCollection":
                self._collection()
            else:
                raise tokens.error(keyword, "'interface' or 'typeCollection'")
        return self._file

    def _import(self) -> None:
        tokens = self._tokens
        if not tokens.accept("model") and tokens.next.kind == "name":
            tokens.take()
            tokens.expect("from")
        if tokens.next.kind != "string":
            raise tokens.error(tokens.next, 'a file name, such as "types.fidl"')
        self._file.imports.append(tokens.take().text)

    def _interface(self) -> None:
        tokens = self._tokens
        token = tokens.expect_name("the name of the interface")
        found = FrancaInterface(f"{self._file.package}.{token.text}", self._place(token))
        while tokens.next.text in {"extends", "manages"}:
            keyword = tokens.take()
            base = self._type(found.name)
            while tokens.accept(","):
                self._type(found.name)
            if keyword.text == "extends":
                found.base = base
        tokens.expect("{")
        while not tokens.accept("}"):
            self._declaration(found)
        self._file.interfaces.append(found)

    def _collection(self) -> None:
        tokens = self._tokens
        name = f".{tokens.take().text}" if tokens.next.kind == "name" else ""
        scope = self._file.package + name
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.next.text == "version":
                tokens.take()
                tokens.skip_block()
            elif not self._defined_type(scope):
                raise tokens.error(tokens.next, "a type such as 'struct', or '}'")

    def _declaration(self, interface: FrancaInterface) -> None:
        """One declaration of an interface."""
        tokens, token = self._tokens, self._tokens.next
        if self._defined_type(interface.name):
            return
        tokens.take()
        match token.text if token.kind == "name" else "":
            case "version":
                tokens.expect("{")
                tokens.expect("major")
                interface.major = tokens.expect_number("a major version")
                tokens.expect("minor")
                interface.minor = tokens.expect_number("a minor version")
                tokens.expect("}")
            case "attribute":
                type = self._type(interface.name)
                interface.attributes[self._name("the name of the attribute")] = type
            case "method":
                name = tokens.expect_name("the name of the method").text
                interface.methods[name] = "fireAndForget" in self._flags()
                if tokens.next.text == "{":
                    tokens.skip_block()
            case "broadcast":
                name = tokens.expect_name("the name of the broadcast").text
                tokens.accept(":") and tokens.expect_name("a signature")  # an overloaded broadcast
                self._flags()
                interface.broadcasts[name] = self._arguments(interface.name)
            case "contract":
                tokens.skip_block()
            case _:
                raise tokens.error(token, "'attribute', 'method', 'broadcast', 'version', a type, or '}'")

    def _arguments(self, scope: str) -> tuple[FrancaMember, ...]:
        """The out arguments of a broadcast."""
        tokens = self._tokens
        tokens.expect("{")
        if tokens.accept("}"):
            return ()
        tokens.expect("out")
        tokens.expect("{")
        found = self._members(scope)
        tokens.expect("}")
        return found

    def _members(self, scope: str) -> tuple[FrancaMember, ...]:
        """Members or arguments up to a '}', which is taken."""
        found: list[FrancaMember] = []
        while not self._tokens.accept("}"):
            type = self._type(scope)
            name = self._name("the name of a member")
            self._tokens.accept(",")
            found.append(FrancaMember(name, type))
        return tuple(found)

    def _type(self, scope: str) -> TypeUse:
        tokens = self._tokens
        token = tokens.expect_name("a type")
        if token.text == "Integer" and tokens.accept("("):
            while not tokens.accept(")"):
                if tokens.take().kind == "end":
                    raise tokens.error(tokens.next, "')'")
        return TypeUse(token.text, self._is_array(), scope, self._place(token))

    def _name(self, what: str) -> str:
        name = self._tokens.expect_name(what).text
        self._flags()
        return name

    def _is_array(self) -> bool:
        found = self._tokens.accept("[")
        if found:
            self._tokens.expect("]")
        return found

    def _flags(self) -> set[str]:
        found: set[str] = set()
        while self._tokens.next.kind == "name" and self._tokens.next.text in _FLAGS:
            found.add(self._tokens.take().text)
        return found

    def _place(self, token: Token) -> str:
        return f"{self._tokens.name}:{token.line}:{token.column}"

    # --- types --------------------------------------------------------------------------------------------------------

    def _defined_type(self, scope: str) -> bool:
        """Whether the next declaration is a type, which is taken."""
        tokens = self._tokens
        tokens.accept("public")
        keyword = tokens.next.text if tokens.next.kind == "name" else ""
        parse = {
            "struct": self._struct,
            "union": self._struct,
            "enumeration": self._enumeration,
            "array": self._array,
            "typedef": self._typedef,
            "map": self._map,
            "const": self._constant,
        }.get(keyword)
        if parse is None:
            return False
        tokens.take()
        parse(scope, keyword)
        return True

    def _add(self, scope: str, name: str, type: FrancaType) -> None:
        self._file.types[f"{scope}.{name}"] = type

    def _base(self, scope: str) -> TypeUse | None:
        return self._type(scope) if self._tokens.accept("extends") else None

    def _struct(self, scope: str, kind: str) -> None:
        name = self._tokens.expect_name(f"the name of the {kind}").text
        base = self._base(scope)
        self._flags()
        self._tokens.expect("{")
        self._add(scope, name, FrancaType(kind, self._members(scope), base=base))

    def _enumeration(self, scope: str, kind: str) -> None:
        tokens = self._tokens
        name = tokens.expect_name("the name of the enumeration").text
        base = self._base(scope)
        tokens.expect("{")
        values: list[tuple[str, int]] = []
        following = 0
        while not tokens.accept("}"):
            label = tokens.expect_name("the name of a value, or '}'").text
            value = tokens.expect_number("a whole number") if tokens.accept("=") else following
            values.append((label, value))
            following = value + 1
            tokens.accept(",")
        self._add(scope, name, FrancaType(kind, values=tuple(values), base=base))

    def _array(self, scope: str, kind: str) -> None:
        name = self._tokens.expect_name("the name of the array").text
        self._tokens.expect("of")
        self._add(scope, name, FrancaType(kind, of=self._type(scope)))

    def _typedef(self, scope: str, kind: str) -> None:
        name = self._tokens.expect_name("the name of the type").text
        self._tokens.expect("is")
        self._add(scope, name, FrancaType(kind, of=self._type(scope)))

    def _map(self, scope: str, kind: str) -> None:
        name = self._tokens.expect_name("the name of the map").text
        self._tokens.skip_block()
        self._add(scope, name, FrancaType(kind))

    def _constant(self, scope: str, kind: str) -> None:
        """A constant has no effect on the network: it is skipped up to the next declaration."""
        tokens = self._tokens
        self._type(scope)
        tokens.expect_name("the name of the constant")
        tokens.expect("=")
        if tokens.next.text in {"{", "["}:
            closing = {"{": "}", "[": "]"}[tokens.take().text]
            while not tokens.accept(closing):
                if tokens.take().kind == "end":
                    raise tokens.error(tokens.next, repr(closing))
            return
        tokens.take()
        while tokens.next.kind == "sign" and tokens.next.text not in {"}", "{"}:
            tokens.take()
            tokens.take()
