from jaxsr.data.held_out import is_held_out

NAMES = [f"photo-{number}.png" for number in range(400)]


def test_a_fraction_of_the_names_is_held_out():
    assert 20 <= is_held_out(NAMES, 0.1).sum() <= 60  # 40 by binomial draws, 3 deviations


def test_one_is_held_out_where_all_lie_above_the_fraction():
    assert is_held_out(NAMES, 0.0).sum() == 1


def test_more_names_move_none_of_the_old():
    part, whole = is_held_out(NAMES[:300], 0.1), is_held_out(NAMES, 0.1)
    assert (part == whole[:300]).all()
