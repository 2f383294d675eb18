"""The blocks of docs/other-libraries.md run, and a torch module inside each library is torch's."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "other-libraries.md").read_text()
SECTIONS = {
    title.partition("\n")[0]: re.findall(r"```python\n(.*?)```", title, re.S)
    for title in PAGE.split("\n## ")
}
FIRST = next(iter(SECTIONS))


@pytest.mark.parametrize(
    ("section", "library"), [("Flax NNX", "flax"), ("Equinox", "equinox"), ("Haiku", "haiku")]
)
def test_the_code_of_a_library_runs(section, library):
    pytest.importorskip(library)
    torch.manual_seed(0)
    names: dict = {"__name__": "page"}
    for code in (*SECTIONS[FIRST], *SECTIONS[section]):
        exec(compile(code, section, "exec"), names)
    images = np.asarray(jax.random.normal(jax.random.key(1), (4, 3, 16, 16)))
    backbone = names["backbone"]
    expected = backbone.train()(torch.from_numpy(images.copy())).detach().numpy()
    if section == "Flax NNX":
        outputs = names["TorchModule"](names["to_jax"](backbone))(images)
    elif section == "Equinox":
        model = names["model"]
        assert names["gradients"].params["0.weight"].shape == (8, 3, 3, 3)
        outputs, _ = model.apply(model.params, model.buffers, images, train=True)
    else:
        part = {"backbone": names["params"]["backbone"]}
        run = names["hk"].transform_with_state(lambda x: names["Backbone"]()(x, True))
        outputs, _ = run.apply(part, {"backbone": names["state"]["backbone"]}, None, images)
    np.testing.assert_allclose(np.asarray(outputs), expected, atol=1e-5)
