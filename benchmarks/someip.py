# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.someip`: cost of an event from one SOME/IP network to another, next to two datagram
forwarders.

    bare       receives and sends the same datagrams without decoding them
    someip     the same work with the package someip: decode, look up, change ids, encode, send; no routing, no ledger
    streamer   receive, decode, map to uProtocol, route, map to SOME/IP, send

All three get the same datagrams from the same generator, alternately in one run. The last two send them with the ids
of another service.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.harness import measure, report
from benchmarks.harness.child_process import Child, ChildError, console_script, module_command
from benchmarks.harness.measure import Load, Round
from benchmarks.harness.report import Spread
from benchmarks.harness.testbed import BenchRig, Direction, Ports, Rig, Subject, wait_connected
from benchmarks.traffic import sockets, wire

_QUICK: Final = Load(warm_up_s=0.2, saturated_s=0.3, paced_messages=300)

_CONFIG: Final = f"""\
authority = "{wire.STREAMER}"
state_dir = "state"

[endpoints.chassis]
transport = "someip"
authorities = ["{wire.ECU}"]
bind = "{sockets.LOOPBACK}"
port = {{someip}}
sd = false

[[endpoints.chassis.services]]
service = {wire.SERVICE:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
remote = "{sockets.LOOPBACK}:{{ecu}}"

[endpoints.body]
transport = "someip"
authorities = ["body"]
bind = "{sockets.LOOPBACK}"
port = {{zenoh}}
sd = false

[[endpoints.body.services]]
service = {wire.OFFERED:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
offered = true
provider = "up://{wire.ECU}/{wire.SERVICE:X}/{wire.MAJOR}/0"
remote = "{sockets.LOOPBACK}:{{receiver}}"

[plugins.usubscription]
[plugins.throttle]
"""
"""Two SOME/IP networks, and a service of the first that is offered on the second.

`zenoh` is an ordinary port here.
"""


# --- external forwarders ------------------------------------------------------------------------------------


def forward_bare(port: int, sink: int) -> None:
    """Forward every datagram unchanged."""
    source, send = sockets.udp_socket(port), sockets.udp_socket(0, sink).send
    recv = source.recv
    sockets.print_ready()
    while True:
        send(recv(2_048))


def forward_with_library(port: int, sink: int) -> None:
    """Forward every known message with other ids, by the package someip."""
    from someip.header import SOMEIPHeader  # this process only; no other one needs the package

    routes = {(wire.SERVICE, wire.EVENT, wire.MAJOR): wire.OFFERED}
    source, send = sockets.udp_socket(port), sockets.udp_socket(0, sink).send
    recv, parse, replace = source.recv, SOMEIPHeader.parse, dataclasses.replace
    sockets.print_ready()
    while True:
        message, _ = parse(recv(2_048))
        service = routes.get((message.service_id, message.method_id, message.interface_version))
        if service is not None:
            send(replace(message, service_id=service).build())


# --- the run ----------------------------------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True):
    """CPU us per message of each forwarder, and the ratios of the streamer, round by round."""

    payload: int
    bare: Spread
    library: Spread
    streamer: Spread
    of_bare: Spread
    of_library: Spread
    lost: int
    ledger: dict[str, int]

    @classmethod
    def of(cls, payload: int, rounds: Sequence[Sequence[Round]], ledger: dict[str, int]) -> "Comparison":
        """`rounds` are of bare, library and streamer."""
        bare, library, streamer = ([each.cpu_us for each in one] for one in rounds)
        return cls(
            payload,
            Spread.of(bare),
            Spread.of(library),
            Spread.of(streamer),
            Spread.of([ours / theirs for ours, theirs in zip(streamer, bare, strict=True)]),
            Spread.of([ours / theirs for ours, theirs in zip(streamer, library, strict=True)]),
            sum(each.lost for one in rounds for each in one),
            ledger,
        )


class SomeipTestbed(BenchRig):
    """Rigs with UDP sockets at both ends."""

    def rig_between(self, subject: Subject, start: Callable[[Ports], Child]) -> Rig:
        ports = Ports.free()
        counters = self._open_counters(f"{subject}-someip-to-someip")
        sink = self._sink(counters, "udp", ports.receiver)
        forwarder = start(ports)
        generator = self._generator(counters, "udp", ports.ecu, ports.someip)
        return wait_connected(Rig(Direction.SOMEIP, subject, generator, sink, counters, forwarder))

    def reference_rig(self, subject: Subject) -> Rig:
        def start(ports: Ports) -> Child:
            return self.start_process(
                subject, module_command("someip", "--forward", subject, ports.someip, ports.receiver)
            )

        return self.rig_between(subject, start)

    def streamer_rig(self) -> Rig:
        def start(ports: Ports) -> Child:
            config = self._directory / "streamer.toml"
            config.write_text(_CONFIG.format(**msgspec.structs.asdict(ports)), encoding="utf-8")
            streamer = self.start_process(
                "streamer", [console_script("ustreamer"), "run", str(config), "--log-format", "json"]
            )
            self._streamers.append(streamer)
            return streamer

        return self.rig_between(Subject.STREAMER, start)


def compare(payload: int, load: Load, repeats: int, progress: Callable[[str], None]) -> Comparison:
    """Run `repeats` alternating rounds of each after a warm-up. Raises ChildError if a process fails."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-"))
        with SomeipTestbed(Path(directory), payload) as stage:
            rigs = [
                stage.reference_rig(Subject.BARE),
                stage.reference_rig(Subject.SOMEIP_LIBRARY),
                stage.streamer_rig(),
            ]
            rounds: list[list[Round]] = [[] for _ in rigs]
            for number in range(-1, repeats):
                for rig, done in zip(rigs, rounds, strict=True):
                    result = measure.run_round(rig, load)
                    progress(
                        f"{payload} B  {rig.subject:8}  {number + 1}/{repeats}  {report.summary(result)}"
                    )
                    if number >= 0:
                        done.append(result)
        return Comparison.of(payload, rounds, stage.ledger())


def table(found: Sequence[Comparison]) -> str:
    lines = ["CPU us per event, median (min-max)"]
    for each in found:
        lines += [
            f"{each.payload} B",
            *(f"  {name:9}{_shown(getattr(each, name))}" for name in ("bare", "library", "streamer")),
            f"  streamer / bare forwarder       {_shown(each.of_bare)}",
            f"  streamer / package someip       {_shown(each.of_library)}",
            f"  lost {each.lost}; ledger: {', '.join(f'{name} {n}' for name, n in each.ledger.items())}",
        ]
    return "\n".join(lines)


def _shown(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.min:.2f}-{spread.max:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.forward:
        kind, port, sink = arguments.forward
        sockets.exit_with_parent()
        (forward_bare if kind == Subject.BARE else forward_with_library)(int(port), int(sink))
    load = _QUICK if arguments.quick else Load()
    repeats = arguments.repeats or (3 if arguments.quick else 9)
    progress: Callable[[str], None] = (
        (lambda _: None) if arguments.quiet else lambda line: print(line, file=sys.stderr, flush=True)
    )
    try:
        found = [compare(payload, load, repeats, progress) for payload in arguments.payload]
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(found))
    if arguments.out is not None:
        arguments.out.write_bytes(msgspec.json.encode(found))
    return 1 if any(each.ledger["unaccounted"] for each in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.someip", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short rounds, few of them: to see that it works"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds that count (9, with --quick 3)")
    parser.add_argument("--payload", type=int, nargs="+", default=[64], metavar="BYTES", help="sizes (64)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figures as JSON")
    parser.add_argument("--quiet", action="store_true", help="no line of progress per round")
    parser.add_argument("--forward", nargs=3, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
