"""Small programs that a release of jaxlib or libtpu compiled wrongly, or died on.

A new release is judged by them, not by its number. To add one, write a function under `@sentinel`,
in the module of the failing platform, that returns the device's result and NumPy's in float64.
`jaxsr.doctor.compiler` runs them in a child process. Findings of the fuzz test in `tests/doctor`
also belong here.
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
