"""Plans of batches: every picture once, on canvases that hold it, few and not much too large."""

import numpy as np
import pytest

from jaxsr.data.batch_plan import plan, rung


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("multiple", [1, 2])
def test_every_picture_is_in_one_batch_that_holds_it(shared, multiple):
    random = np.random.default_rng(0)
    sizes = [(int(h), int(w)) for h, w in 32 * random.integers(1, 20, (200, 2))]
    batches = plan(sizes, batch=8, multiple=multiple, shared=shared, program_px=1 << 18)
    assert sorted(n for each in batches for n in each.numbers) == list(range(200))
    for each in batches:
        batch_sizes = [sizes[number] for number in each.numbers]
        assert len(batch_sizes) <= each.rows <= 8 and each.rows % multiple == 0
        assert all(h <= each.canvas[0] and w <= each.canvas[1] for h, w in batch_sizes)
        if not shared:
            assert set(batch_sizes) == {each.canvas} and not each.mixed
    shapes = {(each.canvas, each.rows, each.mixed) for each in batches}
    assert len(shapes) < (40 if shared else 200)


def test_one_shape_of_batch_for_each_canvas():
    batches = plan([(64, 64)] * 11, batch=8)
    assert [(each.rows, len(each.numbers)) for each in batches] == [(8, 8), (8, 3)]
    assert [each.rows for each in plan([(64, 64)] * 3, batch=8)] == [4]
    assert [each.rows for each in plan([(64, 64)], batch=8)] == [1]
    assert [each.rows for each in plan([(64, 64)], batch=8, multiple=4)] == [4]


def test_pictures_of_one_size_are_not_enlarged():
    (together,) = plan([(96, 416)] * 2, batch=8, shared=True)
    assert together.canvas == (96, 416) and not together.mixed


def test_a_program_is_saved_where_pixels_are_cheaper():
    sizes = [(256, 256)] * 8 + [(256, 320)] * 8
    spent = 8 * 256 * 64
    together = plan(sizes, batch=8, shared=True, program_px=spent)
    assert {(each.canvas, each.mixed) for each in together} == {((256, 320), True)}
    apart = plan(sizes, batch=8, shared=True, program_px=spent - 1)
    assert {each.canvas for each in apart} == {(256, 256), (256, 320)}


def test_batches_of_large_pictures_have_few_rows():
    assert {each.rows for each in plan([(3008, 4000)] * 4, batch=8)} == {1}
    assert {each.rows for each in plan([(1024, 2048)] * 8, batch=8)} == {4}


def test_the_ladder_wastes_at_most_a_quarter_of_a_side():
    for side in range(1, 5000):
        assert side <= rung(side) <= max(1.25 * side, 64 * -(-side // 64))
    assert len({rung(side) for side in range(1, 4097)}) <= 20
