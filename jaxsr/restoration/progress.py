"""Progress of a batch: a bar on a terminal, a line every 15 s elsewhere."""

import sys
import time
from decimal import Decimal

from jaxsr.runtime.activity import is_quiet, redraw_bar, set_status

_LINE_EVERY_S = 15.0


def short(figure: float) -> str:
    """One decimal from 1 on, two digits that count below: 16.0, 0.012, 0.000064."""
    return f"{figure:.1f}" if figure >= 1 else f"{Decimal(f'{figure:.2g}'):f}"


class Progress:
    """Counts input pixels.

    Args:
      total: pixels to come, as far as they are known; 0 where nothing is.
    """

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        set_status("restoring")
        self.pixels, self._total = 0, total
        self._began = self._printed = time.perf_counter()
        layout = "{l_bar}{bar}| {n_fmt}/{total_fmt} px [{elapsed}<{remaining}, {rate_fmt}]"
        self._bar = tqdm(
            total=total,
            unit=" px",
            unit_scale=True,
            smoothing=0.1,
            bar_format=layout if total else "{n_fmt} px [{elapsed}, {rate_fmt}]",
            disable=None,
        )
        redraw_bar(self._bar.refresh)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def add(self, pixels: int) -> None:
        """Counts pixels that are done."""
        set_status(None)
        self.pixels += pixels
        self._bar.update(pixels)
        clock = time.perf_counter()
        is_due = self._bar.disable and clock - self._printed > _LINE_EVERY_S
        # An image that fails takes back all pixels that it had counted.
        if is_due and self.pixels and not is_quiet():
            self._printed = clock
            rate, left = self.pixels / self.seconds, self._total - self.pixels
            total, ending = "", ""
            if left >= 0:
                total, ending = f" of {short(self._total / 1e6)}", f", {left / rate:.0f} s left"
            line = f"{short(self.pixels / 1e6)}{total} MP, {short(rate / 1e6)} MP/s{ending}"
            print(line, file=sys.stderr, flush=True)

    def leave_out(self, pixels: int) -> None:
        """Takes pixels that will not be restored from those to come."""
        self._total -= pixels
        self._bar.total = self._total
        self._bar.refresh()

    def close(self) -> None:
        redraw_bar(None)
        self._bar.close()
