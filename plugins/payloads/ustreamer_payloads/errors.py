# SPDX-License-Identifier: Apache-2.0
"""The error of a payload, or of a value, that does not match its description."""


class PayloadError(ValueError):
    """Bytes or a value that do not match a description: the offset, the member and the expected form.

    The codec that raises the error does not have the path to itself. Each enclosing codec adds one step, the
    innermost first.
    """

    def __init__(self, text: str, at: int | None = None) -> None:
        """`at` is the offset in the payload; None while a value is encoded."""
        super().__init__(text)
        self.text = text
        self.at = at
        self._steps: list[str] = []

    @property
    def place(self) -> str:
        """The path of the member, for example `ChassisState.wheels[3].speed`."""
        return "".join(reversed(self._steps))

    def within(self, step: str) -> "PayloadError":
        """The same error, located at `step` of the enclosing value: ".name", "[3]", or the name of the whole type."""
        self._steps.append(step)
        return self

    def __str__(self) -> str:
        byte = "" if self.at is None else f"at byte {self.at}: "
        return f"{byte}{self.place}: {self.text}" if self._steps else f"{byte}{self.text}"


def too_short(needed: int, at: int, end: int) -> PayloadError:
    return PayloadError(f"needs {needed} bytes, {max(0, end - at)} are left", at)
