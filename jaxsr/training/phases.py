"""The phases of a run: their names and steps."""

from collections.abc import Sequence

from jaxsr.errors import InputError


def phase_at(phases: Sequence[tuple[str, int]], step: int) -> str:
    """Returns the phase of a step, counted from 0."""
    end = 0
    for name, steps in phases:
        end += steps
        if step < end:
            return name
    raise InputError(f"step {step} lies beyond the phases, which end at {end}")


def check_phases(phases: Sequence[tuple[str, int]], steps: int) -> None:
    """Refuses phases that don't fill the run.

    Raises:
      ValueError: a phase has no steps, or the phases don't add up to the run's steps.
    """
    listed = ", ".join(f"{name} {length}" for name, length in phases)
    for name, length in phases:
        if length < 1:
            raise InputError(
                f"the {name} phase would get {length} of steps={steps} ({listed}); "
                "give the run more steps, or the other phases fewer"
            )
    total = sum(length for _, length in phases)
    if total != steps:
        raise InputError(
            f"the phases ({listed}) take {total} steps, but the run has steps={steps}; "
            "make them equal"
        )


def phases_in_words(phases: Sequence[tuple[str, int]]) -> str:
    """Names and steps of the phases, for a person."""
    return ", ".join(f"{name} {steps} steps" for name, steps in phases)
