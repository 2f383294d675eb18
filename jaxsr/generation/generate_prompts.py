"""`python -m jaxsr.generate`: checks everything cheap, loads the model, generates."""

import contextlib
import importlib.util

from jaxsr.errors import InputError
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.padding import SMALLEST_BUCKET
from jaxsr.generation.prompts import all_prompts, check_rows_path
from jaxsr.interop.atomic_write import check_file
from jaxsr.interop.install import install_extra
from jaxsr.models.gguf_names import find_gguf
from jaxsr.models.hub import fetched
from jaxsr.runtime.activity import set_status
from jaxsr.runtime.setup import setup_compute


def run(config: GenerateConfig) -> None:
    """Generates from the prompts of a configuration, or resumes a saved batch.

    Raises:
      UserError: the run could not start.
    """
    prompts = all_prompts(config.prompt, config.prompts, system=config.system)
    if config.resume is None and config.warm_up is None and not prompts:
        raise InputError("there is no prompt; give one as an argument, or a file with --prompts")
    if config.resume is not None and prompts:
        raise InputError("--resume goes on from saved prompts; give no others")
    for path in (config.out, config.save_cache):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent} to write {path.name} into")
        if path is not None:
            check_file(path)
    if config.out is not None:
        check_rows_path(config.out, continues=config.continues)
    check_packages(config)
    set_status(f"loading {config.model}")
    platform = setup_compute(config, jax_on_host=True, deterministic=config.deterministic)
    from jaxsr.models.language_models import check_model

    check_model(config.model, config.implementation)
    if config.draft_model is not None:
        check_model(config.draft_model)
    from jaxsr.generation.session import Session

    session = Session(config, platform)
    if config.warm_up is not None:
        set_status("compiling")
        session.warm_up(config.warm_up or (SMALLEST_BUCKET,))
        return
    set_status("generating")
    with contextlib.closing(session):
        if config.resume is not None:
            session.resume()
        else:
            session.run(prompts)
        session.finish()


def check_packages(config: GenerateConfig) -> None:
    """Names missing packages in one line instead of a traceback."""
    needed = ["tokenizers", *([] if config.raw else ["jinja2"])]
    needed += ["flatbuffers"] if config.engine == "jax" else []
    models = [config.model, *([config.draft_model] if config.draft_model is not None else [])]
    needed += ["gguf"] if any(find_gguf(fetched(model)).is_file() for model in models) else []
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise InputError(
            f"generating needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed; "
            f"{install_extra('generate')}"
        )
