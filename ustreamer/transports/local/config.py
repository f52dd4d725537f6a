# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>] transport = "local"`."""

from typing import Annotated

import msgspec

from ustreamer.transport_port import EndpointConfig


class LocalEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """An endpoint on the in-process network `LocalNetwork.named(network)`."""

    network: Annotated[str, msgspec.Meta(min_length=1, examples=["vehicle"])]
