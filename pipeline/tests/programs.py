# SPDX-License-Identifier: Apache-2.0
"""A folder of links to the programs of this machine, as a PATH without some of them."""

import os
from collections.abc import Iterable
from pathlib import Path


def link_programs(folders: Iterable[Path], links: Path, *, without: str) -> None:
    """Link each program of `folders` into `links`, except those with the prefix `without`.

    The first folder has precedence, as on a PATH. A dangling link is skipped: it starts nothing.
    """
    for folder in dict.fromkeys(each.resolve() for each in folders if each.is_dir()):
        for program in folder.iterdir():
            link = links / program.name
            if not program.name.startswith(without) and program.exists() and not os.path.lexists(link):
                link.symlink_to(program)
