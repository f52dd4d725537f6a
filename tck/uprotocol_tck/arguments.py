# SPDX-License-Identifier: Apache-2.0
"""The options of the command `uprotocol-tck`, each with its check."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from uprotocol_tck.case import SUBJECTS
from uprotocol_tck.runner import FEATURES, JOBS
from uprotocol_tck.uprotocol import MAX_AUTHORITY, Uri, parse_uri

EXIT_CODES: Final = (
    "exit codes: 0 no case failed; 1 a case failed; 2 wrong usage; 69 nothing answers, the subject stopped, or no case "
    "could be judged; 74 a report was not written; 130 interrupted; of several the first of 130, 1, 69, 74"
)
_SPECIAL: Final = frozenset({"unixsock-stream", "unixpipe", "serial", "vsock"})
_HOSTS: Final = frozenset({"tcp", "udp", "tls", "quic", "ws"})
_AUTHORITY: Final = re.compile(r"[^\s/#?*$]+")
_MAX_JOBS: Final = 64


def locator(text: str) -> str:
    """A Zenoh locator."""
    protocol, _, address = text.partition("/")
    address = re.split("[?#]", address)[0]
    host, _, port = address.rpartition(":")
    if protocol in _SPECIAL and address:
        return text
    if protocol in _HOSTS and host and port.isdecimal() and 0 < int(port) < 0x1_0000:
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is no Zenoh locator; expected PROTOCOL/HOST:PORT, such as tcp/127.0.0.1:7447 (protocols: "
        f"{', '.join(sorted(_HOSTS | _SPECIAL))})"
    )


def authority(text: str) -> str:
    """The authority of one device."""
    if not _AUTHORITY.fullmatch(text) or len(text) > MAX_AUTHORITY:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no authority; expected 1 to {MAX_AUTHORITY} characters without blanks, / # ? * and $, such as "
            "hpc.vin1"
        )
    return text


def topic(text: str) -> Uri:
    """The address of a topic."""
    try:
        return parse_uri(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address; expected //AUTHORITY/ENTITY/VERSION/RESOURCE in hexadecimal, such as "
            "//hpc.vin1/4/1/8000"
        ) from None


def wamp_address(text: str) -> str:
    """The address of a RawSocket."""
    try:
        at = urlsplit(text)
        if at.scheme == "rs" and at.hostname and at.port:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is no RawSocket address; expected rs://HOST:PORT, such as rs://127.0.0.1:8080"
    )


def wamp_user(text: str) -> str:
    """A login with a ticket."""
    authid, colon, _ = text.partition(":")
    if not (authid and colon):
        raise argparse.ArgumentTypeError(f"{authid!r} is no login; expected AUTHID:TICKET")
    return text


def wamp_prefix(text: str) -> str:
    """The start of topics of WAMP."""
    prefix = text.rstrip(".")
    if not re.fullmatch(r"\w+(\.\w+)*", prefix, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no start of a WAMP topic; expected letters, digits, _ and single dots, such as "
            "com.example.tck"
        )
    return f"{prefix}."


def number(low: float, high: float, convert: Callable[[str], float] = float) -> Callable[[str], float]:
    """A number of this range."""

    def parse(text: str) -> float:
        try:
            if low <= (value := convert(text)) <= high:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")

    return parse


def optional(parse: Callable[[str], str]) -> Callable[[str], str]:
    """An option that is empty if it is not given."""
    return lambda text: parse(text) if text else ""


def writable(text: str) -> Path:
    """A file that can be written at the end of the run."""
    path = Path(text)
    existing = path if path.exists() else path.parent
    if path.is_dir():
        reason = "it is a directory"
    elif not path.parent.is_dir():
        reason = f"there is no directory {path.parent}"
    elif not os.access(existing, os.W_OK):
        reason = "no permission"
    else:
        return path
    raise argparse.ArgumentTypeError(
        f"{text!r} cannot be written: {reason}; expected a file in an existing directory"
    )


def parser() -> argparse.ArgumentParser:
    """All options. A wrong one ends the process with 2."""
    made = argparse.ArgumentParser(
        prog="uprotocol-tck",
        description="Judges a uSubscription or a uStreamer on a Zenoh network by the rules of uProtocol.",
        epilog=EXIT_CODES,
    )
    _add_subject(made)
    _add_permissions(made)
    _add_wamp(made)
    _add_run(made)
    return made


def _add_subject(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("the subject").add_argument
    add(
        "--connect",
        metavar="LOCATOR",
        type=locator,
        help="Zenoh locator of the subject's network, such as tcp/127.0.0.1:7447",
    )
    add("--subject", choices=[*SUBJECTS, "all"], default="all", help="what is judged (default: all)")
    add(
        "--authority",
        default="hpc.vin1",
        type=authority,
        help="authority of the subject (default: %(default)s)",
    )
    add(
        "--other",
        metavar="AUTHORITY",
        default="",
        type=optional(authority),
        help="an authority that the subject takes for another device",
    )
    add(
        "--connect-other",
        metavar="LOCATOR",
        default="",
        type=optional(locator),
        help="network of that device (default: the same network)",
    )


def _add_permissions(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("what the kit may do, and what the subject has").add_argument
    add(
        "--restart",
        metavar="COMMAND",
        default="",
        help="a shell command that restarts the subject and waits for it",
    )
    add(
        "--allow-reset",
        action="store_true",
        help="also run the cases of Reset, which end all its subscriptions",
    )
    add("--dead-letters", metavar="UURI", type=topic, help="the dead letter topic of the subject")
    features = ", ".join(FEATURES)
    for option, attribute, text in (
        ("--with", "present", f"the subject has it: {features}"),
        ("--without", "absent", f"the subject does not have it: {features}"),
    ):
        add(
            option,
            dest=attribute,
            metavar="FEATURE",
            action="append",
            choices=FEATURES,
            default=[],
            help=text,
        )


def _add_wamp(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("its WAMP broker").add_argument
    add(
        "--wamp",
        metavar="rs://HOST:PORT",
        default="",
        type=optional(wamp_address),
        help="a WAMP router for RawSocket and JSON",
    )
    add("--wamp-realm", metavar="REALM", default="realm1", help="its realm (default: %(default)s)")
    add(
        "--wamp-user",
        metavar="AUTHID:TICKET",
        default="",
        type=optional(wamp_user),
        help="a login that may publish and subscribe the topics of --wamp-prefix (default: anonymous)",
    )
    add(
        "--wamp-prefix",
        metavar="PREFIX",
        default="com.example.tck.",
        type=wamp_prefix,
        help="the start of the topics that this user publishes and subscribes (default: %(default)s)",
    )
    add("--wamp-denied", metavar="TOPIC", default="", help="a topic that this user may not subscribe")


def _add_run(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("the run").add_argument
    seconds = number(0.01, 3600)
    add("--slow", action="store_true", help="also run the cases that take more than 5 minutes")
    add(
        "--deadline",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds for what must come (default: %(default)s)",
    )
    add(
        "--quiet",
        type=seconds,
        default=0.3,
        metavar="S",
        help="seconds for what must not come (default: %(default)s)",
    )
    add(
        "--jobs",
        type=number(1, _MAX_JOBS, int),
        default=JOBS,
        metavar="N",
        help="cases at a time (default: %(default)s)",
    )
    add("--fail-fast", action="store_true", help="stop after the first failure")
    add("--junit", type=writable, metavar="FILE", help="write JUnit XML")
    add("--page", type=writable, metavar="FILE", help="write a page in HTML")
    add("--list", action="store_true", help="list the cases and stop")
    add("patterns", nargs="*", metavar="TEXT", help="only cases whose name or rule contains one of these")


def check(made: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Options that need or exclude each other."""
    if not given.connect:
        made.error("--connect is missing; expected the Zenoh locator of the subject's network")
    if given.connect_other and not given.other:
        made.error("--connect-other needs --other, the authority of that device")
    if given.other == given.authority:
        made.error(f"--other {given.other}: expected another authority than that of the subject, --authority")
    if both := set(given.present) & set(given.absent):
        made.error(f"--with and --without {', '.join(sorted(both))}: expected only one of them")
    for name in ("wamp_user", "wamp_denied"):
        if getattr(given, name) and not given.wamp:
            made.error(f"--{name.replace('_', '-')} needs --wamp, the address of the broker")
