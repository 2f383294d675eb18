"""Image functions against oracles that others wrote: 60 random cases of each dtype and rule."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsr import ops
from jaxsr.xla_calls.calls import SWITCH
from tests.oracles.images.coverage import ELSEWHERE, KERNELS
from tests.oracles.images.every import ORACLES
from tests.oracles.images.oracle import Oracle, gradient_error, in_float64, judge, pictures

RULES = {oracle.name: oracle for oracle in ORACLES}
CASES = [(oracle, dtype) for oracle in ORACLES for dtype in oracle.dtypes]


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which kernels programs call: XLA's alone, or those of libraries too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, request.param)
        jax.clear_caches()
        yield request.param
    jax.clear_caches()


def test_every_function_has_an_oracle_or_a_file():
    assert len(RULES) == len(ORACLES)
    functions = {oracle.function for oracle in ORACLES}
    assert functions | ELSEWHERE.keys() == {n for n in ops.__all__ if n.islower()}
    assert functions.isdisjoint(ELSEWHERE)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("oracle", "dtype"), [pytest.param(*case, id=f"{case[0].name}-{case[1]}") for case in CASES]
)
def test_sixty_cases(kernels: str, oracle: Oracle, dtype: str):
    judgement = judge(oracle, dtype)
    assert judgement.cases >= 60
    assert judgement.wrong <= oracle.ties * judgement.values


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", [o.name for o in ORACLES if o.derivative and "float32" in o.dtypes]
)
def test_gradients_are_central_differences(name: str):
    assert gradient_error(RULES[name]) < 1e-5


@pytest.mark.sample(4)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", [oracle.name for oracle in ORACLES if oracle.weighs])
def test_what_is_not_finite_reaches_those_alone_that_weigh_it(
    kernels: str, name: str, value: float
):
    oracle, rng = RULES[name], np.random.default_rng(0)
    images = np.array(pictures(rng, oracle.shapes[-1], "float32", oracle), np.float64)
    arguments = oracle.draw(rng, images.astype(np.float32))
    row, column = oracle.shapes[-1][0] // 2, oracle.shapes[-1][1] // 2
    wants = []
    for pixel in (0.25, 0.75, value):
        images[:, row, column] = pixel
        if pixel is not value:
            rows = zip(images, *map(np.asarray, arguments), strict=True)
            wants.append(np.stack([oracle.reference(x, *each) for x, *each in rows]))
    got = in_float64(jax.jit(oracle.call)(jnp.asarray(images, jnp.float32), *arguments))
    wants = [want.reshape(got.shape) for want in wants]
    weight = np.abs(wants[1] - wants[0])
    # Weights below 1e-6 are roundings of positions.
    assert not np.isfinite(got[weight > 1e-6]).any()
    np.testing.assert_allclose(got[weight == 0], wants[0][weight == 0], atol=oracle.atol)
