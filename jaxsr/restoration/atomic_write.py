"""Files that appear complete under their name, or not at all."""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO


class WholeFile:
    """A file that takes its name when complete, so that a killed process leaves none there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self.stream: BinaryIO = self._partial.open("wb")

    def finish(self) -> None:
        try:
            self.stream.flush()
            os.fsync(self.stream.fileno())
            self.stream.close()
            self._partial.replace(self.path)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        with contextlib.suppress(OSError):  # a full disk fails again when the buffer is flushed
            self.stream.close()
        self._partial.unlink(missing_ok=True)
