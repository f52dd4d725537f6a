# SPDX-License-Identifier: Apache-2.0
"""Errors that end a command with a message and an exit code instead of a traceback."""

import re


class PipelineError(Exception):
    """An error that the user can fix. The message names the place, the value and the expected value."""

    exit_code = 1


class UsageError(PipelineError):
    """An invalid argument."""

    exit_code = 2


class UnavailableError(PipelineError):
    """A missing external resource: Java, a Spark server, a folder."""

    exit_code = 69


class DamagedError(PipelineError):
    """A table or manifest that this version did not write."""

    exit_code = 74


def damage_in_task(error: Exception) -> DamagedError | None:
    """The DamagedError that a task of Spark raised; None for any other error."""
    if type(error).__name__ != "PythonException":  # of pyspark, which is not imported here
        return None
    found = re.search(r"DamagedError: (.*)", str(error))
    return None if found is None else DamagedError(found[1])
