"""The contact sheet of `restore --truth`."""

import numpy as np

from jaxsr.restoration.quality_report import _cells


def test_cells_are_cut_out_before_the_next_image_is_read():
    draw = np.random.default_rng(0)
    sizes = ((600, 700), (600, 700), (150, 175))
    result, truth, source = (draw.integers(0, 256, (*s, 3), dtype=np.uint8) for s in sizes)
    cells = _cells(result, truth, source)
    assert [cell.size for cell in cells] == [(256, 256)] * 3
    np.testing.assert_array_equal(np.asarray(cells[1]), result[172:428, 222:478])
