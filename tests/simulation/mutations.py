# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.simulation.mutations [--seeds N] [--someip]`: does the simulation find defects that we put in?

Each mutation changes one place of the product in a copy. It is found at the first seed that breaks a promise, or by a
known story. `--known` has the promises that seeds break without a mutation.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.simulation.someip.mutations import SOMEIP_MUTATIONS, Mutation

_REPO: Final = Path(__file__).parents[2]
_PLUGINS: Final = ("usubscription", "wamp")
_COPIED: Final = ("ustreamer", *(f"plugins/{each}/ustreamer_{each}" for each in _PLUGINS), "tests/simulation")
_ZENOH: Final = "ustreamer/transports/zenoh"
_EGRESS: Final = "ustreamer/host/egress"
_SERVICE: Final = "plugins/usubscription/ustreamer_usubscription"


MUTATIONS: Final = (
    Mutation(
        "the connection of a removed node is not shut down",
        f"{_ZENOH}/link_monitor.py",
        "node.link.shut_down()",
        "pass",
    ),
    Mutation(
        "a connection that Zenoh has forgotten is not ended",
        f"{_ZENOH}/link_monitor.py",
        "self._remove_forgotten(key, node, now_ns)",
        "pass",
    ),
    Mutation(
        "the puts to a connection that Zenoh has forgotten are not put again",
        f"{_ZENOH}/link_monitor.py",
        "loss.since_ns = node.joined_ns",
        "pass",
    ),
    Mutation(
        "a publisher that lost its subscribers is not noted",
        f"{_ZENOH}/possible_losses.py",
        "self._losses.setdefault(publisher, now_ns)",
        "pass",
    ),
    Mutation(
        "a route stays open after its subscribers left",
        f"{_ZENOH}/possible_losses.py",
        "publisher.open = False  # at once",
        "pass  # at once",
    ),
    Mutation(
        "a message is not remembered for a retransmission",
        f"{_ZENOH}/publisher.py",
        "self._append(header.origins, now_ns, (head,), (stored,), (len(stored),))",
        "pass",
    ),
    Mutation(
        "a batch is not remembered for a retransmission",
        f"{_ZENOH}/publisher.py",
        "self._remember(origins, self._mark_used(used), heads, payloads)",
        "pass",
    ),
    Mutation(
        "what could not be retransmitted is not counted",
        f"{_ZENOH}/possible_losses.py",
        "            else:\n                self.not_retransmitted += 1\n        except UStatusError:\n",
        "        except UStatusError:\n",
    ),
    Mutation(
        "half of the lost messages are retransmitted",
        f"{_ZENOH}/possible_losses.py",
        "lost = self._lost_of(publisher, to_retransmit)",
        "lost = self._lost_of(publisher, to_retransmit)[::2]",
    ),
    Mutation(
        "retransmitted messages follow newer ones",
        f"{_ZENOH}/possible_losses.py",
        "lost = self._lost_of(publisher, to_retransmit)",
        "lost = self._lost_of(publisher, to_retransmit)[::-1]",
    ),
    Mutation(
        "the ttl of a retransmitted message is not checked",
        f"{_ZENOH}/publisher.py",
        "        if ttl and (\n",
        "        if False and (\n",
    ),
    Mutation(
        "a lost link counts as read to the end",
        f"{_ZENOH}/connected_node.py",
        "discarded all data for it.\n        return self.acked_ns - MARGIN_NS",
        "discarded all data for it.\n        return now_ns",
    ),
    Mutation(
        "after a silence the loss begins now",
        f"{_ZENOH}/connected_node.py",
        "            # It may have frozen just after its last sign of life.",
        "            return now_ns\n            # It may have frozen just after its last sign of life.",
    ),
    Mutation(
        "a silent node counts as alive until the last acknowledgement of its kernel",
        f"{_ZENOH}/connected_node.py",
        "            # It may have frozen just after its last sign of life.",
        "            return self.acked_ns - MARGIN_NS  #",
    ),
    Mutation(
        "an aborted link counts as closed in order",
        f"{_ZENOH}/connected_node.py",
        "if kept_up and not self.is_aborted:",
        "if kept_up:",
    ),
    Mutation(
        "a kill after a keep-alive counts as a close",
        f"{_ZENOH}/connected_node.py",
        "if new == _CLOSE_BYTES:",
        "if new in (_CLOSE_BYTES - 1, _CLOSE_BYTES):",
    ),
    Mutation(
        "an acknowledgement of the kernel confirms a message, also of a frozen node",
        f"{_ZENOH}/connected_node.py",
        "arrived_ns = min(self.acked_ns, self.received_ns) - MARGIN_NS",
        "arrived_ns = self.acked_ns - MARGIN_NS",
    ),
    Mutation(
        "what the retransmit buffer evicts is not counted",
        f"{_ZENOH}/retransmit.py",
        "            self._count_evicted(self._drop_oldest())\n",
        "            self._drop_oldest()\n",
    ),
    Mutation(
        "a stop forgets what may not have arrived",
        "ustreamer/host/runtime/draining.py",
        "        if not (messages or forgotten or dead):\n",
        "        if True:\n",
    ),
    Mutation(
        "a link without a node counts as up",
        f"{_ZENOH}/link_monitor.py",
        "if self.up is (bool(self._nodes) and not self._all_stalled):",
        "if self.up is not self._all_stalled:",
    ),
    Mutation(
        "samples in the channel are thrown away at the stop",
        f"{_ZENOH}/transport.py",
        "subscription.join(max(0, until_ns - monotonic_ns()) / 1e9)",
        "subscription.set_listeners(())",
    ),
    Mutation(
        "the first message of a refused batch is forgotten",
        f"{_EGRESS}/send_worker.py",
        "self._queue.requeue(unsent)",
        "self._queue.requeue(unsent[1:])",
    ),
    Mutation(
        "a failed message makes no dead letter",
        f"{_EGRESS}/send_worker.py",
        "        self._on_undelivered(item, status)\n        with self._lock:",
        "        with self._lock:",
    ),
    Mutation(
        "an expired message is sent",
        f"{_EGRESS}/send_worker.py",
        "        if now_ns > item.deadline_ns:\n            return self._expire(item)",
        "        if False:\n            return self._expire(item)",
    ),
    Mutation(
        "a refused send counts as delivered",
        f"{_EGRESS}/send_worker.py",
        "            return refusal\n        with self._lock:\n",
        "        with self._lock:\n",
    ),
    Mutation(
        "a delivered message is counted twice",
        f"{_EGRESS}/send_worker.py",
        "            self._settle(item, Verdict.DELIVERED, self._clock.monotonic_ns(), None)\n",
        "            self._settle(item, Verdict.DELIVERED, self._clock.monotonic_ns(), None)\n"
        "            self.ledger.settle(Verdict.DELIVERED)\n",
    ),
    Mutation(
        "a queued message does not wake the send thread",
        f"{_EGRESS}/endpoint_queue.py",
        "if self._idle and queue.scheduler.ready:",
        "if False:",
    ),
    Mutation(
        "newer messages overtake waiting ones",
        f"{_EGRESS}/endpoint_queue.py",
        "if self._queue.messages and not self._queue.is_empty_for(target.subscriber):",
        "if False:",
    ),
    Mutation(
        "messages without room are dropped without a dead letter",
        f"{_EGRESS}/endpoint_queue.py",
        "        for item, status in undelivered:\n            self._on_undelivered(item, status)",
        "        undelivered.clear()",
    ),
    Mutation(
        "what a stop takes back to the disk is not counted",
        f"{_EGRESS}/durable_queue.py",
        "            self._left_on_disk += spooled\n",
        "            pass\n",
    ),
    Mutation(
        "callers of abandoned calls get no response",
        "ustreamer/host/runtime/draining.py",
        "    for item in abandoned:\n        dispatcher.on_undelivered(item, STOPPED)\n",
        "",
    ),
    Mutation(
        "the dead letters of a stop are not written",
        "ustreamer/host/storage/dead_letter_writer.py",
        "            while not self._queued:\n                if self._closing:\n",
        "            while self._closing or not self._queued:\n                if self._closing:\n",
    ),
    Mutation(
        "a spooled message is not deleted after its delivery",
        f"{_EGRESS}/durable_queue.py",
        "            self._schedule_delete(key)\n",
        "            pass\n",
    ),
    Mutation(
        "a spooled message is deleted when it is written",
        f"{_EGRESS}/durable_queue.py",
        "        self._persisted += 1\n        item.spool_key = key\n",
        "        self._persisted += 1\n        item.spool_key = key\n        self._schedule_delete(key)\n",
    ),
    Mutation(
        "a message counts as written without a commit",
        f"{_EGRESS}/durable_queue.py",
        "keys = self._spool.commit(records, [*deletes, *obsolete])",
        "keys = [b'\\x02' + bytes(8)] * (len(batch) + len(sent))",
    ),
    Mutation(
        "a restart forgets the last spooled message",
        f"{_EGRESS}/durable_queue.py",
        "                self._queue.restore(item)\n                self._persisted += 1",
        "                if self._persisted % 20:\n                    self._queue.restore(item)\n"
        "                self._persisted += 1",
    ),
    Mutation(
        "a subscription is acknowledged without a commit",
        f"{_SERVICE}/store/store.py",
        "        self._store.commit(changes)\n",
        "        pass\n",
    ),
    Mutation(
        "the send thread ends after a reload",
        f"{_EGRESS}/endpoint_queue.py",
        "            self._limits = limits\n            self._queue.set_limits(limits)\n",
        "            self._limits = limits\n            self._queue.set_limits(limits)\n"
        "            self._closing = self._thread.is_alive()\n",
    ),
    Mutation(
        "a publisher is undeclared before its messages have arrived",
        f"{_ZENOH}/publisher.py",
        "publishers.pop_idle(needed_since_ns, ",
        "publishers.pop_idle(NEVER_NS, ",
    ),
    Mutation(
        "a stop deletes what only the disk has",
        f"{_EGRESS}/durable_queue.py",
        "obsolete = [key for _, key in sent_keys if key not in kept_keys]",
        "obsolete = [key for _, key in sent_keys]",
    ),
    Mutation(
        "a router that resumes has read everything with its clients",
        f"{_ZENOH}/connected_node.py",
        "if self.is_router and received_ns - self.received_ns > self._lease_ns // 2:",
        "if False:",
    ),
)


def _run(source: Path, seeds: int, known: Mapping[str, Sequence[str]], core: int, *, someip: bool) -> str:
    """The first failure that is not known: "seed kind". Empty if there is none; "ERROR" if the simulation failed."""
    search_path = os.pathsep.join(map(str, (source, *(source / "plugins" / each for each in _PLUGINS))))
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": search_path}
    command = [
        sys.executable,
        "-m",
        "tests.simulation",
        "--seeds",
        "0",
        str(seeds),
        "--first",
        json.dumps(known),
        "--core",
        str(core),
        *(["--someip"] if someip else []),
    ]
    ended = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    return f"ERROR: {ended.stderr[-300:]}" if ended.stderr else ended.stdout.strip()


def _copy(target: Path) -> None:
    for name in _COPIED:
        shutil.copytree(_REPO / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


def _outcome(
    mutation: Mutation, seeds: int, known: Mapping[str, Sequence[str]], cores: SimpleQueue[int]
) -> str:
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory)
        _copy(source)
        path = source / mutation.path
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            return f"OBSOLETE: {text.count(mutation.old)} places match"
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        core = cores.get()
        try:
            someip = mutation in SOMEIP_MUTATIONS
            return _run(source, seeds, known, core, someip=someip) or "NOT FOUND"
        finally:
            cores.put(core)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--known", default="{}", help="the kinds of violations that seeds have anyway, as JSON"
    )
    parser.add_argument("--someip", action="store_true", help="those of the SOME/IP transport")
    parser.add_argument("--only", default="", help="mutations with this text in their names")
    options = parser.parse_args(arguments)
    chosen = SOMEIP_MUTATIONS if options.someip else MUTATIONS
    mutations = [each for each in chosen if options.only in each.name]
    known = json.loads(options.known)
    missed = 0
    cores: SimpleQueue[int] = SimpleQueue()
    for core in range(options.jobs):
        cores.put(core)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda each: _outcome(each, options.seeds, known, cores), mutations)
        for mutation, outcome in zip(mutations, outcomes, strict=True):
            print(f"{mutation.name}: {outcome}", flush=True)
            missed += outcome.startswith(("NOT FOUND", "OBSOLETE", "ERROR"))
    print(f"{len(mutations) - missed} of {len(mutations)} found")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
