"""Users' modules that import libraries which are missing, or made for another build of torch."""

import sys

import pytest

from jaxsr.errors import InputError
from jaxsr.models.build import import_attribute
from jaxsr.models.libraries import import_library

# The check that `import torchvision` fails at where its operators were not compiled for this torch.
BESIDE_ANOTHER_TORCH = """
import torch

if not torch._C._jit_get_schemas_for_operator("torchvision::nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
NETWORK = "imported"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes `users_module.py` where it can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text):
        sys.modules.pop("users_module", None)
        (tmp_path / "users_module.py").write_text(text)

    yield write
    sys.modules.pop("users_module", None)


def test_a_module_that_imports_torchvision_beside_another_torch(module):
    module(BESIDE_ANOTHER_TORCH)
    assert import_attribute("users_module:NETWORK", option="--network") == "imported"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import torch\nimport no_such_library\n",
            "importing users_module failed: ModuleNotFoundError: No module named 'no_such_library' "
            "(users_module.py:2)",
        ),
        (
            "from torch import no_such_name\n",
            "importing users_module failed: ImportError: cannot import name 'no_such_name'",
        ),
        ("a = [\n", "importing users_module failed: SyntaxError: '[' was never closed"),
        (
            "import dataclasses\nFields = dataclasses.make_dataclass('F', [('a', list, [])])\n",
            "ValueError: mutable default <class 'list'> for field a is not allowed: use "
            "default_factory (users_module.py:2)",
        ),
        ("\n\nundefined\n", "NameError: name 'undefined' is not defined (users_module.py:3)"),
    ],
)
def test_an_import_that_fails_says_where(module, text, message):
    module(text)
    with pytest.raises(InputError) as error:
        import_attribute("users_module:Net", option="--network")
    assert message in str(error.value) and "PYTHONPATH" not in str(error.value)


def test_a_library_that_is_missing_or_lacks_another_says_what_to_install(module):
    with pytest.raises(InputError, match=r"pip install --no-deps no_such_library$"):
        import_library("no_such_library")
    module("import no_such_library.part\n")
    with pytest.raises(InputError, match=r"install the package that has no_such_library$"):
        import_library("users_module")
