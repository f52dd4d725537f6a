# SPDX-License-Identifier: Apache-2.0
"""The link state: of loopback, and in a network namespace with link changes."""

import json
import subprocess
import sys
from ipaddress import IPv4Network

import pytest

from ustreamer.transports.someip.sd.interface_monitor import InterfaceMonitor, find_interface


def test_loopback_is_found_by_any_of_its_addresses() -> None:
    for address in ("127.0.0.1", "127.3.2.1"):
        found = find_interface(address)
        assert found is not None
        assert (found.network, found.up) == (IPv4Network("127.0.0.0/8"), True)


def test_an_unknown_address_has_no_interface_and_no_link() -> None:
    assert find_interface("198.51.100.1") is None
    watch = InterfaceMonitor("198.51.100.1")
    assert not watch.is_up()
    watch.close()


_IN_A_NAMESPACE = """
import json, select, subprocess, time
from ustreamer.transports.someip.sd.interface_monitor import InterfaceMonitor, find_interface
watch, states = InterfaceMonitor("10.77.0.1"), []
poll = select.poll(); poll.register(watch, select.POLLIN)
def change(up, *commands):
    # One change causes several messages, and the carrier follows the command: the state after the last one counts.
    for each in commands:
        subprocess.run(["ip", *each.split()], check=True)
    deadline, woken = time.monotonic() + 30, False
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
        woken = True
        watch.drain()
        if watch.is_up() == up:
            break
    states.append([commands[-1], woken, watch.is_up()])
change(False, "link add pa type veth peer name pb")
change(False, "addr add 10.77.0.1/24 dev pa")
change(True, "link set pa up", "link set pb up")
change(True, "addr add 10.78.0.1/16 dev pa")
states.append(str(find_interface("10.78.0.1").network))
change(False, "link set pb down")
change(True, "link set pb up")
change(False, "link set pa down")
change(True, "link set pa up")
change(False, "link del pa")
print(json.dumps(states))
"""


# [utest->SD-23]
def test_every_link_change_wakes_the_monitor() -> None:
    alone = ["unshare", "-Urn", sys.executable, "-c"]
    if subprocess.run([*alone, ""], capture_output=True, check=False).returncode:
        pytest.skip("needs `unshare -Urn` for a network of its own")
    ran = subprocess.run([*alone, _IN_A_NAMESPACE], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [
        ["link add pa type veth peer name pb", True, False],
        ["addr add 10.77.0.1/24 dev pa", True, False],
        ["link set pb up", True, True],
        ["addr add 10.78.0.1/16 dev pa", True, True],
        "10.78.0.0/16",
        ["link set pb down", True, False],
        ["link set pb up", True, True],
        ["link set pa down", True, False],
        ["link set pa up", True, True],
        ["link del pa", True, False],
    ]
