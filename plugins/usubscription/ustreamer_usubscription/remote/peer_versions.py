# SPDX-License-Identifier: Apache-2.0
"""The version of the interface in which the uSubscription of each device is called, by its answers so far.

Version 3 comes first. A device that answers UNIMPLEMENTED is called in the other version, and so is one that has never
answered and where a call was not delivered: it may listen at the methods of one version only.

An answer settles the version until the link comes up again, because a rebooted device may have another software. Behind
a router the link stays up while a device reboots. So a call without an answer is followed by probes
(version_probes.py); only their answers change a settled version.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ustreamer.core.base.links import LinkState
from ustreamer.core.routing.usubscription_codec import VERSION_3, VERSION_4
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

MAX_PEERS: Final = 4_096
"""Devices that are remembered at most; the oldest one is called in version 3 again."""

OTHER_VERSION: Final = {VERSION_3: VERSION_4, VERSION_4: VERSION_3}


class _Peer:
    """The version of one device, and whether it has answered in it since its link came up (`is_settled`)."""

    __slots__ = ("is_settled", "refused", "up_count", "version")

    def __init__(self, up_count: int) -> None:
        self.up_count = up_count
        self.version = VERSION_3
        self.is_settled = False
        self.refused: set[int] = set()


class PeerVersions:
    """The version to call each device in. Belongs to one thread.

    A topic of every instance of an entity exists in version 4 only (X-16), so its calls always have version 4.
    """

    def __init__(self, link_of: Callable[[str], LinkState], upstream_of: Callable[[str], str] = str) -> None:
        """`link_of` is the link state of an authority, `upstream_of` the device to call about its topics."""
        self._link_of = link_of
        self._upstream_of = upstream_of
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def version_for(self, topic: UUri) -> int:
        """The version of the next call about `topic`."""
        return VERSION_4 if topic.ue_instance == ANY_INSTANCE else self._peer(topic).version

    def is_settled(self, topic: UUri) -> bool:
        """Whether the device about `topic` has answered in the present version."""
        return self._peer(topic).is_settled

    def on_answer(self, topic: UUri, version: int) -> None:
        """The device knows the method of a call in `version`."""
        if topic.ue_instance != ANY_INSTANCE:
            peer = self._peer(topic)
            peer.version, peer.is_settled = version, True
            peer.refused.clear()

    def on_unimplemented(self, topic: UUri, version: int) -> bool:
        """The device does not know the method; whether the call may be repeated in the other version."""
        if topic.ue_instance == ANY_INSTANCE:
            return False
        peer = self._peer(topic)
        peer.refused.add(version)
        if len(peer.refused) == len(OTHER_VERSION):
            peer.version, peer.is_settled = VERSION_3, False
            return False
        if peer.version == version:
            peer.version, peer.is_settled = OTHER_VERSION[version], False
        return True

    def on_undelivered(self, topic: UUri, version: int) -> None:
        """A call in `version` had no answer of the device: the next one has the other version, unless it is settled."""
        peer = self._peer(topic)
        if peer.version == version and not peer.is_settled:
            peer.version = OTHER_VERSION[version]

    def _peer(self, topic: UUri) -> _Peer:
        authority = self._upstream_of(topic.authority_name)
        up_count = self._link_of(authority).up_count
        peer = self._peers.get(authority)
        if peer is None or peer.up_count != up_count:
            self._peers.pop(authority, None)
            while len(self._peers) >= MAX_PEERS:
                self._peers.popitem(last=False)
            peer = self._peers[authority] = _Peer(up_count)
        return peer
