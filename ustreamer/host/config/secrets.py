# SPDX-License-Identifier: Apache-2.0
"""Secrets of a configuration: read from the environment or from a file, never shown.

    secret = { env = "DASHBOARD_SECRET" }
    ticket = { file = "/run/credentials/ticket" }

In: the parsed document. Out: the document with the text of each secret, before its sections are checked.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ustreamer.transport_port import readable_by_all

if TYPE_CHECKING:
    from ustreamer.host.config.document import KeyPath, TomlDocument
    from ustreamer.host.config.validation import Problems

SECRET_KEYS: Final = frozenset({"ticket", "ticket_sha256", "secret", "derived_key", "password"})
"""The keys whose values are secrets, in any section."""
_SOURCES: Final = ("env", "file")
_MAX_BYTES: Final = 65_536
_UNREADABLE: Final = "unreadable"


def is_secret_key(key: object) -> bool:
    """Whether a key has a secret value, also with a typing mistake."""
    if not isinstance(key, str):
        return False
    import difflib

    names = (*SECRET_KEYS, "token", "salt")
    return bool(difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.7))


def read_secrets(problems: "Problems") -> None:
    """Replace each `{ env = ... }` and `{ file = ... }` at a secret key by its text, and note what cannot be read."""
    document = problems.document
    for path, table, key in _secrets(document.data, ()):
        source = table[key]
        if not isinstance(source, dict):
            continue
        table[key] = _UNREADABLE  # further checks of this value say nothing
        if (
            len(source) != 1
            or not set(source) <= set(_SOURCES)
            or not all(_is_text(each) for each in source.values())
        ):
            document.unreadable_secrets[path] = 'expected a text, { env = "NAME" } or { file = "PATH" }'
            continue
        ((kind, name),) = source.items()
        try:
            text = _from_environment(name) if kind == "env" else _from_file(document.base / name)
        except ValueError as error:
            document.unreadable_secrets[path] = str(error)
            continue
        table[key] = text
        document.secret_sources[path] = None if kind == "env" else document.base / name
    for path, text in document.unreadable_secrets.items():  # a document may be checked more than once
        problems.add_problem(path, text)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _secrets(tree: object, at: "KeyPath") -> "Iterator[tuple[KeyPath, dict[str, Any], str]]":
    """Path, table and key of each secret."""
    if isinstance(tree, dict):
        for key, value in list(tree.items()):
            path = (*at, key)
            if key in SECRET_KEYS and (isinstance(value, str) or _is_source(value)):
                yield path, tree, key
            else:
                yield from _secrets(value, path)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _secrets(value, (*at, index))


def _is_source(value: object) -> bool:
    return isinstance(value, dict) and bool(set(value) & set(_SOURCES))


def _from_environment(name: str) -> str:
    text = os.environ.get(name, "")
    if not text:
        raise ValueError(f"the environment variable {name} is not set")
    return text


def _from_file(path: Path) -> str:
    """The text of a file without a final newline."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except IsADirectoryError as error:
        raise ValueError(f"{path} is a directory: expected a file with the secret") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    if not text or len(content) > _MAX_BYTES:
        raise ValueError(f"{path} has {len(content)} bytes, expected a secret of 1 to {_MAX_BYTES}")
    return text


def exposed_secrets(document: "TomlDocument") -> "Iterator[tuple[KeyPath, str, str]]":
    """The secrets in files that every user of this machine may read: place, text and advice."""
    advice = "chmod 600 the file"
    for path, _, _ in _secrets(document.data, ()):
        file = document.secret_sources.get(path, document.file)
        if file is not None and readable_by_all(file):
            what = "it stands in this file" if file == document.file else f"it stands in {file}"
            yield path, f"every user of this machine can read the secret: {what}", advice
