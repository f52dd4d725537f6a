# SPDX-License-Identifier: Apache-2.0
import pytest

from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener, UTransport
from ustreamer.uprotocol.uuri import UUri


class Pushing(UTransport):
    """As little as a transport must define."""

    def send(self, message: UMessage) -> None: ...

    def register_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def unregister_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...


@pytest.mark.parametrize("missing", ["send", "register_listener", "unregister_listener"])
def test_a_transport_without_an_operation_cannot_be_instantiated(missing: str) -> None:
    operations = {name: value for name, value in vars(Pushing).items() if not name.startswith("__")}
    del operations[missing]
    with pytest.raises(TypeError, match=missing):
        type("Incomplete", (UTransport,), operations)()


@pytest.mark.parametrize("sink", [None, UUri("hpc", 1, 1, 0)])
def test_receive_is_unimplemented(sink: UUri | None) -> None:
    with pytest.raises(UStatusError) as refusal:
        Pushing().receive(UUri("vin", 1, 1, 0x8000), sink)
    assert refusal.value.code is UCode.UNIMPLEMENTED
    assert f"receive(up://vin/1/1/8000, {sink})" in refusal.value.message
    assert "register a listener" in refusal.value.message
