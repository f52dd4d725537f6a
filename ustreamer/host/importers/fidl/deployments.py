# SPDX-License-Identifier: Apache-2.0
"""Parses Franca deployments (.fdepl) into blocks with properties. The importer gives them a meaning."""

import msgspec

from ustreamer.host.importers.fidl.tokens import MAX_DEPTH, Token, Tokens

Value = str | int | bool | tuple["str | int | bool", ...]


class Property(msgspec.Struct, frozen=True):
    """A property with its place."""

    name: str
    value: Value
    place: str


class DeploymentBlock(msgspec.Struct):
    """`kind name { ... }`, such as `method sayHello { SomeIpMethodID = 1 }`; `kind` is "" for a member."""

    kind: str
    name: str
    place: str
    properties: dict[str, Property] = {}
    blocks: list["DeploymentBlock"] = []


class DeploymentFile(msgspec.Struct):
    """The content of one file: the blocks of its definitions."""

    imports: list[str] = []
    definitions: list[DeploymentBlock] = []


def parse_deployment(tokens: Tokens) -> DeploymentFile:
    """Parse a .fdepl file. Raises UStatusError with the place of the first mistake."""
    found = DeploymentFile()
    if tokens.accept("package"):
        tokens.expect_name("the name of the package")
    while tokens.next.kind != "end":
        keyword = tokens.take()
        match keyword.text if keyword.kind == "name" else "":
            case "import":
                if tokens.next.kind != "string":
                    raise tokens.error(tokens.next, 'a file name, such as "vehicle.fidl"')
                found.imports.append(tokens.take().text)
            case "specification":
                tokens.expect_name("the name of the specification")
                if tokens.accept("extends"):
                    tokens.expect_name("the name of a specification")
                tokens.skip_block()
            case "define":
                found.definitions.append(_definition(tokens, keyword))
            case _:
                raise tokens.error(keyword, "'import', 'specification' or 'define'")
    return found


def _definition(tokens: Tokens, keyword: Token) -> DeploymentBlock:
    """`define SPECIFICATION for KIND [as] NAME { ... }`"""
    tokens.expect_name("the name of a specification")
    tokens.expect("for")
    kind = tokens.expect_name("'interface', 'provider' or 'typeCollection'").text
    tokens.accept("as")
    name = tokens.expect_name(f"the name of the {kind}").text
    if tokens.accept("as"):
        tokens.expect_name("the name of the definition")
    if tokens.accept("use"):
        tokens.expect_name("the name of a definition")
    return _block(tokens, kind, name, keyword, 0)


def _block(tokens: Tokens, kind: str, name: str, at: Token, depth: int) -> DeploymentBlock:
    found = DeploymentBlock(kind, name, _place(tokens, at))
    if depth > MAX_DEPTH:
        raise tokens.error(tokens.next, f"at most {MAX_DEPTH} blocks inside each other")
    tokens.expect("{")
    while not tokens.accept("}"):
        token = tokens.expect_name("a property such as SomeIpServiceID, a block, or '}'")
        if tokens.accept("="):
            found.properties[token.text] = Property(token.text, _value(tokens), _place(tokens, token))
            tokens.accept(";")
        elif tokens.next.text == "{":
            found.blocks.append(_block(tokens, "", token.text, token, depth + 1))
        else:
            inner = tokens.expect_name(f"'=', '{{', or the name of the {token.text}")
            tokens.accept("as") and tokens.expect_name("a name")  # an alias of an instance
            found.blocks.append(_block(tokens, token.text, inner.text, token, depth + 1))
    return found


def _value(tokens: Tokens) -> Value:
    if not tokens.accept("{"):
        return _single(tokens)
    found: list[str | int | bool] = []
    while not tokens.accept("}"):
        found.append(_single(tokens))
        tokens.accept(",")
    return tuple(found)


def _single(tokens: Tokens) -> str | int | bool:
    token = tokens.next
    if token.kind == "number":
        return tokens.expect_number("a whole number")
    if token.kind == "string":
        return tokens.take().text
    name = tokens.expect_name("a number, a string, true, false or a name").text
    return {"true": True, "false": False}.get(name, name)


def _place(tokens: Tokens, token: Token) -> str:
    return f"{tokens.name}:{token.line}:{token.column}"
