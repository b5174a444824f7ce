# SPDX-License-Identifier: Apache-2.0
"""A device that runs each entry once and answers every later dispatch without running it.

It stands for firmware that keeps a reset image by address, and for a completion status that nobody read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npu.artifact import Artifact
from npu.device import Device, Session


class StaleDevice:
    """Opens sessions of another device that go stale after their first dispatch.

    repeats: a later dispatch leaves the output of the first again; otherwise it leaves the buffer as it was.
    """

    def __init__(self, device: Device, *, repeats: bool = True) -> None:
        self.device, self.repeats, self.name = device, repeats, device.name

    def open(self, artifact: Artifact) -> StaleSession:
        return StaleSession(self.device.open(artifact), self.repeats)


class StaleSession:
    """A session whose second dispatch of an entry does not reach the array."""

    def __init__(self, session: Session, repeats: bool) -> None:
        self._session, self._repeats = session, repeats
        self._sizes: dict[str, int] = {}
        self._bound: dict[str, dict[int, str]] = {}
        self._first: dict[str, np.ndarray] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def allocate(self, name: str, nbytes: int) -> None:
        self._sizes[name] = nbytes
        self._session.allocate(name, nbytes)

    def bind(self, entry: str, buffers: dict[int, str]) -> None:
        self._bound[entry] = buffers
        self._session.bind(entry, buffers)

    def run(self, entry: str) -> None:
        output = self._bound[entry][max(self._bound[entry])]
        if entry not in self._first:
            self._session.run(entry)
            self._first[entry] = self._session.read(output, 0, (self._sizes[output],), np.uint8)
        elif self._repeats:
            self._session.write(output, 0, self._first[entry])
