"""Small programs that a release of jaxlib or libtpu compiled wrongly, or died on.

A new release is judged by them, not by its number. To add one, write a function under `@sentinel`,
in the module of what it went wrong on, that returns what the device computes, and the same by NumPy
in float64. `jaxsr.doctor.compiler` runs them in a child process. What the fuzz of `tests/doctor`
finds belongs here, too.
"""

from jaxsr.doctor.sentinels import cpu, cuda, partitioner, tpu
from jaxsr.doctor.sentinels.sentinel import Sentinel

SENTINELS = {
    value.name: value
    for module in (cpu, partitioner, tpu, cuda)
    for value in vars(module).values()
    if isinstance(value, Sentinel)
}
"""All of them, by name."""
