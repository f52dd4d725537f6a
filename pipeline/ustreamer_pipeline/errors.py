# SPDX-License-Identifier: Apache-2.0
"""What a command says and which exit code it ends with, instead of a traceback."""


class PipelineError(Exception):
    """Something that the caller can put right. The message names the place, the value and what would have been right."""

    exit_code = 1


class UsageError(PipelineError):
    """An argument that cannot be meant."""

    exit_code = 2


class UnavailableError(PipelineError):
    """Something outside is missing: Java, a Spark server, a folder."""

    exit_code = 69


class DamagedError(PipelineError):
    """A table or manifest is not what this version writes."""

    exit_code = 74
