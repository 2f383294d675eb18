"""Draws lane-folding.svg: `python docs/figures/lane_folding.py`."""

from pathlib import Path

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d")
EMPTY = "#eeeeee"
LANES = 448  # drawn width of the 128 lanes


def box(x: float, y: float, w: float, h: float, fill: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}" stroke="#fff" '
        'stroke-width="1"/>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 14) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def draw() -> str:
    share, row = LANES / 8, 18
    parts = [text(20, 30, "16 channels as they are: a column a row of lanes, 112 of 128 empty")]
    for column, colour in enumerate(COLOURS):
        y = 44 + column * row
        parts += [
            text(96, y + 13, f"column {column}", anchor="end", size=12),
            box(104, y, LANES, row - 2, EMPTY),
            box(104, y, share, row - 2, colour),
        ]
    y = 44 + 8 * row + 34
    parts.append(
        text(20, y, "folded: eight columns share the lanes; a pooling by 2 compares two halves")
    )
    y += 14
    parts.append(text(96, y + 13, "group 0", anchor="end", size=12))
    for place, column in enumerate((0, 4, 2, 6, 1, 5, 3, 7)):
        x = 104 + place * share
        parts += [
            box(x, y, share, row - 2, COLOURS[column]),
            text(x + share / 2, y + 32, str(column), anchor="middle", size=12),
        ]
    y += 46
    parts += [
        text(104 + LANES / 4, y, "even columns", anchor="middle", size=12),
        text(104 + 3 * LANES / 4, y, "odd columns", anchor="middle", size=12),
    ]  # fmt: skip
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 580 {y + 16}" '
        f'font-family="sans-serif" fill="#222"><rect width="580" height="{y + 16}" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("lane-folding.svg").write_text(draw())
