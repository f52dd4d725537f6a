# SPDX-License-Identifier: Apache-2.0
"""The page that shows live values: one self-contained file."""

import json
from collections.abc import Callable, Mapping
from importlib.resources import files

MEDIA_TYPE = "text/html; charset=utf-8"


def pages(realm: str) -> Callable[[str], Mapping[str, Callable[[], tuple[str, bytes]]]]:
    """The pages of a listener whose WebSocket has a path: the live values, at `/`."""

    def at(path: str) -> Mapping[str, Callable[[], tuple[str, bytes]]]:
        def page() -> tuple[str, bytes]:
            text = files("ustreamer_wamp").joinpath("page.html").read_text(encoding="utf-8")
            # As JavaScript strings: no name can end the script.
            for name, value in (("__PATH__", path), ("__REALM__", realm)):
                text = text.replace(name, json.dumps(value)[1:-1].replace("<", "\\u003c"))
            return MEDIA_TYPE, text.encode()

        return {"/": page}

    return at
