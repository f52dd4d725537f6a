# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.calls`: calls in both directions, 64 pending and one by one, through the streamer and a bare
forwarder.

    python -m benchmarks.calls caller-zenoh PORT | server-zenoh PORT
    python -m benchmarks.calls caller-someip PORT TARGET | server-someip PORT

A caller reads `WINDOW SECONDS` from stdin and prints its results. The forwarder is a streamer or one of
`benchmarks.traffic.bare_call_forwarders`: the bare one, or the blind one for comparison.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from zenoh.handlers import FifoChannel

from benchmarks.harness.child_process import Child, ChildError, module_command
from benchmarks.harness.measure import percentile
from benchmarks.harness.testbed import CONFIG, BenchRig, Ports
from benchmarks.traffic import sockets, wire
from benchmarks.traffic.bare_call_forwarders import CHANNEL, CLIENT, METHOD, OFFERED, PADDING, TTL_MS

WINDOW: Final = 64

_STALL_S: Final = 1.0
_START_S: Final = 30.0
_TRIES: Final = 3

_CONFIG: Final = CONFIG.replace(
    f"events = [{{{{ id = {wire.EVENT:#06x} }}}}]\n", "methods = [0x0001]\n", 2
).replace("sd = false\n", f'sd = false\nclients = ["{sockets.LOOPBACK}"]\n')


class Caller:
    """Keeps calls pending. `answered(number)` is called for every response, from any thread."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call
        self._number = 0
        self._sent_ns: dict[int, int] = {}
        self._ages: list[int] = []
        self._window = threading.Semaphore(0)

    def on_response(self, number: int) -> None:
        sent_ns = self._sent_ns.pop(number, None)
        if sent_ns is not None:
            self._ages.append(time.monotonic_ns() - sent_ns)
            self._window.release()

    def run_calls(self, window: int, seconds: float) -> dict[str, float]:
        self._ages, self._window = [], threading.Semaphore(window)
        self._sent_ns.clear()
        began = time.monotonic()
        calls = lost = 0
        while time.monotonic() - began < seconds:
            if not self._window.acquire(timeout=_STALL_S):
                lost += len(self._sent_ns)  # no response for this time: the calls are lost
                self._sent_ns.clear()
                for _ in range(window):
                    self._window.release()
                continue
            self._number = self._number % 0xFFFF + 1
            self._sent_ns[self._number] = time.monotonic_ns()
            self._call(self._number)
            calls += 1
        took, ages = time.monotonic() - began, sorted(self._ages)
        if not ages:
            return {"answers": 0, "lost": calls}
        return {
            "answers": len(ages),
            "lost": lost,
            "calls_per_s": len(ages) / took,
            "p50_us": percentile(ages, 0.5) / 1_000,
            "p99_us": percentile(ages, 0.99) / 1_000,
        }

    def serve_stdin(self) -> None:
        """Run the commands of stdin, one per line."""
        sockets.print_ready()
        for line in sys.stdin:
            window, seconds = line.split()
            print(json.dumps(self.run_calls(int(window), float(seconds))), flush=True)
        sockets.exit_now()


def caller_zenoh(port: int) -> None:
    session = sockets.zenoh_client(port)
    answers = session.declare_subscriber(wire.unicast_key(METHOD, wire.SUBSCRIBER), FifoChannel(CHANNEL))
    put = sockets.blocking_publisher(session, wire.unicast_key(wire.SUBSCRIBER, METHOD)).put
    tail = wire.request_tail(wire.SUBSCRIBER, METHOD, TTL_MS)

    def call(number: int) -> None:
        head = wire.attachment_head(time.time_ns() // 1_000_000, time.monotonic_ns() & 0xFFFF_FFFF_FFFF)
        put(PADDING + number.to_bytes(8), attachment=head + tail)

    caller = Caller(call)

    def receive_responses() -> None:
        while True:
            caller.on_response(int.from_bytes(answers.recv().payload.to_bytes()[-8:]))

    threading.Thread(target=receive_responses, daemon=True).start()
    caller.serve_stdin()


def server_zenoh(port: int) -> None:
    """Responds to calls of `OFFERED` with their payload; the attachment of the request has the reply address."""
    session = sockets.zenoh_client(port)
    requests = session.declare_subscriber(wire.unicast_key(CLIENT, OFFERED), FifoChannel(CHANNEL))
    put = sockets.blocking_publisher(session, wire.unicast_key(OFFERED, CLIENT)).put
    tail = wire.response_tail(OFFERED, CLIENT, TTL_MS)
    sockets.print_ready()
    number = 0
    while True:
        sample = requests.recv()
        attachment = sample.attachment
        assert attachment is not None
        number += 1
        head = wire.attachment_head(time.time_ns() // 1_000_000, number)
        put(sample.payload, attachment=head + tail + wire.reqid(attachment.to_bytes()))


def caller_someip(port: int, target: int) -> None:
    sock = sockets.udp_socket(port, target)

    def call(number: int) -> None:
        body = PADDING + number.to_bytes(8)
        sock.send(
            wire.SOMEIP_HEADER.pack(wire.OFFERED, 1, len(body) + 8, 0x77, number, 1, wire.MAJOR, 0, 0) + body
        )

    caller = Caller(call)

    def receive_responses() -> None:
        while True:
            caller.on_response(int.from_bytes(sock.recv(2_048)[-8:]))

    threading.Thread(target=receive_responses, daemon=True).start()
    caller.serve_stdin()


def server_someip(port: int) -> None:
    """Responds to every REQUEST with its payload."""
    sock = sockets.udp_socket(port)
    sockets.print_ready()
    while True:
        datagram, address = sock.recvfrom(2_048)
        sock.sendto(datagram[:14] + b"\x80" + datagram[15:], address)


# --- the measurement --------------------------------------------------------------------------------------------------


def _start_rig(
    stage: BenchRig, ports: Ports, name: str, forwarder: Child, *, to_someip: bool
) -> tuple[Child, Child]:
    """Start the forwarder and the caller; the server already runs."""
    if to_someip:
        stage.start_process(f"{name}-server", module_command("calls", "server-someip", ports.ecu))
        return forwarder, stage.start_process(
            f"{name}-caller", module_command("calls", "caller-zenoh", ports.zenoh)
        )
    stage.start_process(f"{name}-server", module_command("calls", "server-zenoh", ports.zenoh))
    return forwarder, stage.start_process(
        f"{name}-caller", module_command("calls", "caller-someip", ports.ecu, ports.someip)
    )


def measured(directory: Path, rounds: int = 5, seconds: float = 1.5) -> list[dict[str, Any]]:
    results = []
    with BenchRig(directory, 64) as stage:
        for to_someip in (True, False):
            name = "to-someip" if to_someip else "to-zenoh"
            rigs = {}
            for kind in ("bare", "blind"):
                ports = Ports.free()
                ends = (ports.zenoh, ports.someip, *((ports.ecu,) if to_someip else ()))
                bare = stage.start_process(
                    f"{kind}-{name}", module_command("traffic.bare_call_forwarders", f"{kind}-{name}", *ends)
                )
                rigs[kind] = _start_rig(stage, ports, f"{kind}-{name}", bare, to_someip=to_someip)
            ports = Ports.free()
            streamer = stage.start_streamer(name, _CONFIG, ports)
            rigs["streamer"] = _start_rig(stage, ports, name, streamer, to_someip=to_someip)
            for _, caller in rigs.values():
                _wait_connected(caller)
            results.append(
                _alternate(
                    "Zenoh calls SOME/IP" if to_someip else "SOME/IP calls Zenoh", rigs, rounds, seconds
                )
            )
    return results


def _wait_connected(caller: Child) -> None:
    """Call until a response arrives: a new session may not have discovered its peers yet."""
    for _ in range(20):
        if _run_caller(caller, 1, 0.2, none_on_timeout=True) is not None:
            return
    raise ChildError(f"{caller.name}: no call was answered{caller.log_tail()}")


def _run_caller(
    caller: Child, window: int, seconds: float, *, none_on_timeout: bool = False
) -> dict[str, float] | None:
    caller.send_command(f"{window} {seconds}")
    deadline = time.monotonic() + _START_S + seconds
    while time.monotonic() < deadline:
        line = caller.poll_line()
        if line is not None:
            found: dict[str, float] = json.loads(line)
            return found if found["answers"] else None
        time.sleep(0.01)
    if none_on_timeout:
        return None
    raise ChildError(f"{caller.name}: no output within {_START_S:g} s{caller.log_tail()}")


def _run_answered(caller: Child, window: int, seconds: float) -> dict[str, float]:
    """As `_run_caller`. A run without an answer is repeated, and its calls are lost."""
    lost = 0
    for _ in range(_TRIES):
        found = _run_caller(caller, window, seconds)
        if found is not None:
            return {**found, "lost": found["lost"] + lost}
        lost += window
    raise ChildError(f"{caller.name}: no answer in {_TRIES} runs{caller.log_tail()}")


def _alternate(
    direction: str, rigs: dict[str, tuple[Child, Child]], rounds: int, seconds: float
) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in rigs}
    for _ in range(rounds):
        for name, (forwarder, caller) in rigs.items():
            cpu_ns = forwarder.cpu_ns
            windowed = _run_answered(caller, WINDOW, seconds)
            cpu_us = (forwarder.cpu_ns - cpu_ns) / 1_000 / windowed["answers"]
            sequential = _run_answered(caller, 1, seconds / 2)
            found[name].append(
                {
                    "calls_per_s": windowed["calls_per_s"],
                    "cpu_us": cpu_us,
                    "p50_us": sequential["p50_us"],
                    "p99_us": sequential["p99_us"],
                    "lost": windowed["lost"] + sequential["lost"],
                }
            )
    metrics = ("calls_per_s", "cpu_us", "p50_us", "p99_us")
    return {
        "direction": direction,
        **{name: {m: median(r[m] for r in done) for m in (*metrics, "lost")} for name, done in found.items()},
        "ratio": {
            m: median(a[m] / b[m] for a, b in zip(found["streamer"], found["bare"], strict=True))
            for m in metrics
        },
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'calls':<24}{'':<10}{'calls/s':>10}{'CPU us/call':>13}{'p50 us, alone':>15}{'p99 us, alone':>15}{'lost':>6}"
    ]
    for each in results:
        for name in ("blind", "bare", "streamer", "ratio"):
            found = each[name]
            shown = [
                f"{found[m]:.2f}" if name == "ratio" else f"{found[m]:.1f}"
                for m in ("calls_per_s", "cpu_us", "p50_us", "p99_us")
            ]
            first = each["direction"] if name == "blind" else ""
            lost = f"{found['lost']:.0f}" if "lost" in found else ""
            lines.append(
                f"{first:<24}{name:<10}{shown[0]:>10}{shown[1]:>13}{shown[2]:>15}{shown[3]:>15}{lost:>6}"
            )
    return "\n".join(
        [*lines, f"calls/s with {WINDOW} pending; median of alternating rounds, ratios of adjacent rounds"]
    )


_ROLES: Final[dict[str, Callable[..., None]]] = {
    "caller-zenoh": caller_zenoh,
    "server-zenoh": server_zenoh,
    "caller-someip": caller_someip,
    "server-someip": server_someip,
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _ROLES:
        if not arguments[0].startswith("caller"):
            sockets.exit_with_parent()
        _ROLES[arguments[0]](*map(int, arguments[1:]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        results = measured(Path(directory), options.rounds, options.seconds)
    print(json.dumps(results, indent=1) if options.json else table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
