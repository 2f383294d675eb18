"""`python -m jaxsr.compare WHAT [OPTIONS]`: how far results lie apart, and where they part.

`ops` resizes the same pictures with every library and compares the results in pairs. `trace`
records a run of a model operation by operation; `traces A B`, or just `A B`, compares two such
records; `engines` runs two engines side by side and finds the first operation that errs. The exit
status of the last two is 0 where rounding explains every difference, 1 where not, 2 for bad input.
"""

import sys
from collections.abc import Callable, Sequence

from jaxsr.errors import InputError
from jaxsr.runtime.cli import parse_options, run_command, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _compare(arguments))


def _compare(arguments: list[str]) -> int | None:
    from jaxsr.comparison.commands import compare_folders

    if compare_folders(arguments):
        arguments = ["traces", *arguments]
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print("usage: python -m jaxsr.compare WHAT [OPTIONS]\n")
        for what, command in COMMANDS.items():
            print(f"  {what:<10}{(command.__doc__ or '').splitlines()[0]}")
        return None
    if name not in COMMANDS:
        raise InputError(
            f"nothing called {name!r} to compare; choose one of {', '.join(COMMANDS)}, or give the "
            "folders of two traces"
        )
    return COMMANDS[name](rest)


def _ops(arguments: list[str]) -> None:
    """Resize of jaxsr, torch, torchvision, OpenCV, Pillow and jax.image: precision and time."""
    import io
    import json
    import logging

    from jaxsr.comparison.compare_ops import Options, against_published, as_json, compare_ops
    from jaxsr.comparison.difference_figure import draw_comparison
    from jaxsr.comparison.ops_report import print_tables
    from jaxsr.data.photos import open_photos
    from jaxsr.interop.mesh import select_platform
    from jaxsr.interop.weights import write_whole

    options = parse_options(
        Options, arguments, prog="python -m jaxsr.compare ops", description=_ops.__doc__ or ""
    )
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    select_platform(options.platform)
    photos = open_photos(options.images, crop=1, check="header")
    chosen = range(min(options.limit, len(photos)))
    pictures = [photos.read(index) for index in chosen]
    described = {photos.names[k]: list(pictures[k].shape) for k in chosen}
    groups = compare_ops(
        options, pictures, progress=lambda text: print(f"resizing: {text}", file=sys.stderr)
    )
    print_tables(groups, against_published(options, groups))
    options.out.mkdir(parents=True, exist_ok=True)
    content = json.dumps(as_json(options, groups, described), indent=1, ensure_ascii=False) + "\n"
    write_whole(options.out / "comparison.json", content.encode())
    image = io.BytesIO()
    draw_comparison(groups).save(image, "PNG")
    write_whole(options.out / "comparison.png", image.getvalue())
    print(f"wrote {options.out}/comparison.json and comparison.png")


def _trace(arguments: list[str]) -> int:
    """Record a run of a model, operation by operation."""
    from jaxsr.comparison.commands import trace

    return trace(arguments)


def _traces(arguments: list[str]) -> int:
    """Compare two recorded runs: where they part."""
    from jaxsr.comparison.commands import traces

    return traces(arguments)


def _engines(arguments: list[str]) -> int:
    """Run a model on two engines: the first operation that errs, its local and total error."""
    from jaxsr.comparison.commands import engines

    return engines(arguments)


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "ops": _ops,
    "trace": _trace,
    "traces": _traces,
    "engines": _engines,
}

if __name__ == "__main__":
    run_program(main, "compare")
