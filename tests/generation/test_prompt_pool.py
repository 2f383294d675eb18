"""Which waiting prompts are fed together."""

from jaxsr.generation.prompt_pool import PACKED_TOKENS, PromptPool, Request


def pool_of(*lengths):
    return PromptPool(
        Request(index=i, prompt=[1] * n, number=i, seed=0) for i, n in enumerate(lengths)
    )


def taken(pool, most):
    return [request.index for request in pool.take(most)]


def test_the_longest_goes_first_and_shorter_ones_fill_up():
    pool = pool_of(30, 200, 50, 120, 26, 9)
    assert pool.longest == 200
    assert [request.index for request in pool.next(8)] == [1, 2]
    assert taken(pool, 8) == [1, 2]  # 250 tokens: no other fits
    assert (len(pool), pool.longest) == (4, 120)
    assert taken(pool, 2) == [3, 0]
    assert taken(pool, 8) == [4, 5]
    assert taken(pool, 8) == []
    assert (len(pool), pool.longest) == (0, 0)


def test_equal_lengths_keep_their_order_and_a_long_prompt_has_its_bucket():
    assert taken(pool_of(7, 7, 7), 2) == [0, 1]
    assert PACKED_TOKENS < 300
    assert taken(pool_of(80, 300, 90, 4), 8) == [1, 0, 3]  # of 384
    assert taken(pool_of(*[4] * 40), 40) == [*range(16)]
