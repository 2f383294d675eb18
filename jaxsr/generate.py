"""`python -m jaxsr.generate PROMPT… --model PATH`: text from a causal language model.

The model is a Hugging Face folder or a GGUF file. Prompts are arguments, or lines of a .txt or
.jsonl file; outputs go to the terminal and, with --out, to a row per prompt.
"""

import dataclasses
from collections.abc import Sequence

from jaxsr.runtime.cli import named_options, parse_options, run_command, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(_generate, arguments)


def _generate(arguments: list[str]) -> int | None:
    from jaxsr.generation.config import GenerateConfig

    config = parse_options(GenerateConfig, arguments, prog="python -m jaxsr.generate")
    config = dataclasses.replace(config, named_options=named_options(arguments))
    if config.aot is not None:
        from jaxsr.generation.ahead_run import run
    else:
        from jaxsr.generation.generate_prompts import run
    return run(config)


if __name__ == "__main__":
    run_program(main, "generate")
