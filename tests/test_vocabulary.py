# SPDX-License-Identifier: Apache-2.0
"""Names and pages: no coined word, no class name twice, small folders, short lines."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests.test_repository import facts_of, python_files, repository_files, source_modules, text_of, tree_of
from ustreamer.host.config.config import StreamerConfig

GLOSSARY = "docs/glossary.md"
MAX_MODULES = 25
MAX_COLUMNS = 120
WITH_LONG_ROWS = {"docs/conformance-kit.md", "docs/someip-conformance.md"}
"""A table row is one line. These pages are generated, with code, tests or cases of an item in one row."""
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
COMPONENTS = {
    "admin",
    "clock",
    "control",
    "dead_letters",
    "egress",
    "local",
    "mqtt",
    "observe",
    "plugins",
    "recorder",
    "someip",
    "spool",
    "storage",
    "streamer",
    "throttle",
    "timers",
    "tracing",
    "ustreamer_service",
    "usubscription",
    "wamp",
    "zenoh",
}
SAME_NAME_ALLOWED = {
    "OfferedService": "the same concept as configured and as announced by SD",
    "Target": "the recorder's event is named after the target that it describes; the name is in recordings",
}
ORDINARY_WORDS = {"put", "plan", "word", "standing", "lane", "leap"}
"""Avoided as the name of a concept, but ordinary English or a wire term inside another name (`put_batch`)."""


def coined_words() -> frozenset[str]:
    """The last column of the glossary's table, and the list below it."""
    text = text_of(GLOSSARY)
    column = [
        line.rsplit("|", 2)[1] for line in text.splitlines() if line.startswith("|") and line.count("|") == 4
    ]
    words = {word.strip() for cell in column for word in cell.split(",")} | set(
        re.findall(r"`(\w+)`", text.split("## More words to avoid")[1].split("\n## ")[0])
    )
    return frozenset(words - {"", "not", "---"})


def parts(name: str) -> list[str]:
    """`SubscriberQueue`, `subscriber_queue` and `egress.subscriber_queue` are all subscriber, queue."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(".", "_").split("_")


@cache
def coined_pattern() -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(sorted(coined_words() - ORDINARY_WORDS))})\b")


def coined_in(name: str) -> set[str]:
    return set(coined_pattern().findall(" ".join(parts(name))))


@pytest.mark.parametrize("name", ["Wishes", "EgressLane" + "s", "helping", "sd_unsaid", "clock.leaps"])
def test_a_coined_word_is_found_in_any_spelling(name: str) -> None:
    assert coined_in(name)


@cache
def public_classes() -> tuple[tuple[str, str], ...]:
    """(module path, class name) of every class that another module may use."""
    return tuple((module, name) for module in source_modules() for name in facts_of(module).public_classes)


def test_modules_and_public_classes_have_no_coined_word() -> None:
    names = [(module, Path(module).stem) for module in source_modules()]
    names += public_classes()
    assert {f"{module}: {name}" for module, name in names if coined_in(name)} == set()


def test_a_public_class_name_is_defined_once() -> None:
    places = defaultdict(set)
    for module, name in public_classes():
        places[name].add(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert twice.keys() - SAME_NAME_ALLOWED.keys() == set(), twice
    assert SAME_NAME_ALLOWED.keys() <= twice.keys(), "an exception that nothing needs"


def config_keys(kind: object, seen: set[object]) -> Iterator[str]:
    """Every key of a section, and of the sections in it."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            yield field.encode_name
            yield from config_keys(field.type, seen)
    for argument in getattr(kind, "__args__", ()):
        yield from config_keys(argument, seen)


def config_structs() -> list[type]:
    """The types of all sections: the file itself, endpoints of every transport, plugins of every distribution."""
    from ustreamer_mqtt.config import MqttEndpoint
    from ustreamer_payloads.plugin import PayloadsPlugin
    from ustreamer_recorder.config import RecorderConfig
    from ustreamer_throttle.plugin import ThrottlePlugin
    from ustreamer_tracing.config import TracingConfig
    from ustreamer_usubscription.config import UsubscriptionConfig
    from ustreamer_wamp.config import WampConfig

    from ustreamer.transports.someip.config import SomeipEndpoint
    from ustreamer.transports.zenoh.config import ZenohEndpoint

    return [
        StreamerConfig,
        SomeipEndpoint,
        ZenohEndpoint,
        MqttEndpoint,
        PayloadsPlugin.Config,
        RecorderConfig,
        ThrottlePlugin.Config,
        TracingConfig,
        UsubscriptionConfig,
        WampConfig,
    ]


def test_configuration_keys_have_no_coined_word() -> None:
    keys = {key for section in config_structs() for key in config_keys(section, set())}
    assert {"authority", "ack_timeout_ms", "dynamic_services"} <= keys
    assert {key for key in keys if coined_in(key)} == set()


@cache
def log_events() -> tuple[tuple[str, str], ...]:
    """(place, event) of every call of a logger with a literal event."""
    return tuple(
        (f"{module}:{line}", event)
        for module in source_modules()
        if "log" in text_of(module).lower()
        for line, event in logged_in(tree_of(module))
    )


def logged_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=method, value=ast.Name(id=logger) | ast.Attribute(attr=logger)),
                args=[ast.Constant(value=str(event)), *_],
            ) if method in LOG_METHODS and "log" in logger.lower():
                yield node.lineno, event


def test_a_log_event_begins_with_its_component_and_has_no_coined_word() -> None:
    events = log_events()
    assert len(events) > 50
    assert [each for each in events if each[1].split(".")[0] not in COMPONENTS or "." not in each[1]] == []
    assert [each for each in events if coined_in(each[1])] == []


def test_a_folder_has_few_modules() -> None:
    folders = Counter(str(Path(name).parent) for name in python_files() if "/pb/" not in name)
    assert {folder: count for folder, count in folders.items() if count > MAX_MODULES} == {}


def words_in(text: str, words: frozenset[str]) -> set[str]:
    """The words and phrases of `words` in a text, in any case, also inside a name in snake case."""
    pattern = "|".join(sorted(words))
    return set(re.findall(rf"(?<![a-z])({pattern})(?![a-z])", re.sub(r"[\s_]+", " ", text.lower())))


def avoided_words() -> frozenset[str]:
    """The list of the glossary's last chapter."""
    return frozenset(re.findall(r"`([a-z ]+)`", text_of(GLOSSARY).split("## Words to avoid in text")[1]))


def own_texts() -> list[str]:
    """Every text file but lists of the words themselves, the specification's own files, and one golden payload."""
    lists = (GLOSSARY, "CHANGELOG.md", "tests/test_vocabulary.py", "tests/golden/recording_run.py")
    return [
        name for name in repository_files() if name not in lists and not name.startswith("proto/uprotocol/")
    ]


@pytest.mark.parametrize("text", ["Nobody answers.", "test_who_is_told", "what\ncame", "WISHES"])
def test_an_avoided_word_is_found_in_text_and_names(text: str) -> None:
    assert words_in(text, avoided_words())


def test_no_text_has_an_avoided_word() -> None:
    words = avoided_words()
    assert {"nobody", "is told"} <= words
    assert {name: found for name in own_texts() if (found := words_in(text_of(name), words))} == {}


def pages() -> list[str]:
    return [name for name in repository_files() if name.endswith(".md")]


def test_a_line_of_a_page_has_at_most_120_columns() -> None:
    assert "docs/architecture.md" in pages()
    wide = [
        f"{name}:{number}"
        for name in pages()
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if len(line) > MAX_COLUMNS and not (name in WITH_LONG_ROWS and line.startswith("| "))
    ]
    assert wide == []
