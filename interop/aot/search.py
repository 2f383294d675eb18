"""The largest batch whose program fits a device's memory, found by compiling."""

from collections.abc import Callable

from jaxsr.interop.aot.compile import Ahead


def largest_batch(
    compile_at: Callable[[int], Ahead], first: Ahead, *, batch: int, step: int, precision: float
) -> tuple[int | None, list[tuple[int, bool]]]:
    """Bisects between a batch that fits and one that does not.

    Memory grows nearly in proportion to the batch, so the next guess is where the two nearest
    trials put the limit; each guess is a whole compilation.

    Args:
      compile_at: compiles for a batch.
      first: the report for `batch`.
      batch: tried already, a multiple of `step`.
      step: batches are multiples of it: the devices, times the slices of an accumulated step.
      precision: stop where the answer is known to this part of itself; 0 for the last step.

    Returns:
      The largest batch that fits, or None if not even `step` does; and every trial.
    """
    trials: dict[int, Ahead] = {batch: first}
    while True:
        fits = max((b for b, a in trials.items() if a.compiles), default=0)
        fails = min((b for b, a in trials.items() if not a.compiles), default=None)
        if fails is not None and fails - fits <= max(step, precision * fits):
            break
        guess = _guess(trials, fits, fails, step)
        trials[guess] = compile_at(guess)
    return fits or None, [(b, trials[b].compiles) for b in sorted(trials)]


def _guess(trials: dict[int, Ahead], fits: int, fails: int | None, step: int) -> int:
    """The next batch to try, strictly between the two bounds."""
    known = [(b, a.memory.total, a.memory.available) for b, a in trials.items() if a.memory]
    guess = 2 * fits if fits else (fails or 2 * step) // 2
    if known:
        # Through the two largest that fit; through one, as if all its memory were the batch's.
        (b1, m1, limit), (b0, m0, _) = [*sorted(known, reverse=True), (0, 0, 0)][:2]
        slope = max((m1 - m0) / (b1 - b0), 1.0)
        guess = int(b1 + (limit - m1) / slope)
        guess = min(guess, 16 * b1)
    guess = guess // step * step
    low, high = fits + step, (fails - step if fails is not None else guess)
    if fails is not None and guess >= fails:
        guess = (fits + fails) // 2 // step * step
    return min(max(guess, low), max(high, low))
