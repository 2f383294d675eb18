"""Times of a video's packets where the file's own start again.

Joined transport streams do so. As the program ffmpeg does, the rest of the file then follows on.
"""

from fractions import Fraction
from typing import Any, NamedTuple

_BACK_S = Fraction(1, 10)
"""Further back is a new start, as in ffmpeg's `ts_discontinuity_detect`."""


class _Next(NamedTuple):
    """Bounds of a stream's next packet, in ticks."""

    least: int
    """Decoding time that muxers take."""
    dts: int
    """Decoding time where the packet before ends."""
    pts: int
    """Time of presentation where all before end."""


class PacketTimes:
    """Puts the packets of a file in order, one by one."""

    def __init__(self) -> None:
        self._shift_s = Fraction(0)
        self._next: dict[int, _Next] = {}

    def put_in_order(self, packet: Any) -> bool:
        """Changes a packet's times where they do not follow; returns whether they start again.

        All streams move together, so that sound and pictures stay as they are to each other.
        """
        _move(packet, round(self._shift_s / packet.time_base))
        if packet.dts is None:
            return False
        pts = packet.dts if packet.pts is None else packet.pts
        bounds = self._next.get(packet.stream.index, _Next(packet.dts, packet.dts, pts))
        back_s = (bounds.least - packet.dts) * packet.time_base
        starts_again = back_s > _BACK_S and packet.stream.type in ("audio", "video")
        if starts_again:
            ticks = max(bounds.dts - packet.dts, bounds.pts - pts)
            self._shift_s += ticks * packet.time_base
            _move(packet, ticks)
        is_late = packet.dts < bounds.least
        if is_late:  # muxers refuse it
            packet.dts = bounds.least
            packet.pts = None if packet.pts is None else max(packet.pts, packet.dts)
        least, length = packet.dts + is_late, packet.duration or 0
        pts = packet.dts if packet.pts is None else packet.pts
        self._next[packet.stream.index] = _Next(
            least, max(packet.dts + length, least), max(pts + length, bounds.pts)
        )
        return starts_again


def _move(packet: Any, ticks: int) -> None:
    packet.pts = None if packet.pts is None else packet.pts + ticks
    packet.dts = None if packet.dts is None else packet.dts + ticks
