# SPDX-License-Identifier: Apache-2.0
"""A progress bar on rank 0 when it writes to a terminal and tqdm is there; lines otherwise."""

import sys
from types import TracebackType
from typing import Any

from common.world import World


class Progress:
    def __init__(self, label: str, steps: int, world: World):
        self._world = world
        self._bar: Any = None
        if world.rank == 0 and sys.stderr.isatty():
            try:
                from tqdm import tqdm

                self._bar = tqdm(total=steps, desc=label, unit="step", leave=False)
            except ImportError:
                pass

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text)
        else:
            self._world.say(text)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
