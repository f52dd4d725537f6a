# SPDX-License-Identifier: Apache-2.0
"""The UTransport of up-python on Zenoh, with the mapping of up-spec (up-l1/zenoh.adoc)."""

from up_python_zenoh.transport import UpPythonTransport, client_config

__all__ = ["UpPythonTransport", "client_config"]
