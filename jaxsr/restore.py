"""Restores images: `jaxsr.restore(images, model)` and `python -m jaxsr.restore INPUT…`.

Any torch network that turns images into images runs here, on JAX or on plain torch, tile by
tile with the result of the whole image. The work is done in `jaxsr.restoration`.
"""

from collections.abc import Sequence

from jaxsr.restoration.restore_images import restore
from jaxsr.runtime.callable_module import make_callable
from jaxsr.runtime.cli import parse_options, run_command, run_program

make_callable(__name__, restore)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_restore, arguments)


def _restore(arguments: list[str]) -> int:
    from jaxsr.restoration.config import RestoreConfig

    config = parse_options(RestoreConfig, arguments, prog="python -m jaxsr.restore")
    if config.aot is not None:
        from jaxsr.restoration.ahead_tiles import run
    else:
        from jaxsr.restoration.restore_files import run
    return run(config)


if __name__ == "__main__":
    run_program(main, "restore")
