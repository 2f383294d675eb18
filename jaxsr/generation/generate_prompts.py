"""`python -m jaxsr.generate`: checks everything cheap, loads the model, generates."""

import importlib.util

from jaxsr.errors import InputError, MissingFileError
from jaxsr.generation.config import GenerateConfig
from jaxsr.generation.prompts import Prompt, check_rows_path, read_prompts
from jaxsr.interop.atomic_write import check_file
from jaxsr.runtime.setup import setup_compute


def run(config: GenerateConfig) -> None:
    """Generates from the prompts of a configuration, or resumes a saved batch.

    Raises:
      UserError: nothing could start.
    """
    prompts = [Prompt.of(text, system=config.system) for text in config.prompt]
    for index, text in enumerate(config.prompt):
        if not text:
            raise InputError(f"prompt {index} is empty; give it some text")
    if config.prompts is not None:
        prompts += read_prompts(config.prompts, system=config.system)
    if config.resume is None and not prompts:
        raise InputError("there is no prompt; give one as an argument, or a file with --prompts")
    if config.resume is not None and prompts:
        raise InputError("--resume goes on from saved prompts; give no others")
    for path in (config.out, config.save_cache):
        if path is not None and not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent} to write {path.name} into")
        if path is not None:
            check_file(path)
    if config.out is not None:
        check_rows_path(config.out)
    _check_packages(config)
    platform = setup_compute(config, jax_on_host=True, deterministic=config.deterministic)
    if config.model.is_dir():
        from jaxsr.models.language_models import check_folder

        check_folder(config.model, config.implementation)
    elif not config.model.is_file():
        raise MissingFileError(
            f"no model at {config.model}; give a Hugging Face folder or a .gguf file"
        )
    from jaxsr.generation.session import Session

    session = Session(config, platform)
    if config.resume is not None:
        session.resume()
    else:
        session.run(prompts)
    session.finish()


def _check_packages(config: GenerateConfig) -> None:
    """Names what is not installed, in one line instead of a traceback."""
    needed = ["tokenizers", *([] if config.raw else ["jinja2"])]
    needed += ["flatbuffers"] if config.engine == "jax" else []
    needed += ["gguf"] if config.model.is_file() else []
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise InputError(
            f"generating needs {', '.join(missing)}, which is not installed; "
            "pip install -e '.[generate]'"
        )
