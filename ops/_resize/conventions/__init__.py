"""One module for each library whose resize is reproduced.

To add one: a module here with a `CONVENTION`, its line below, and a test against the library.
"""

from jaxsr.ops._resize.conventions import matlab, opencv, pillow, torch

CONVENTIONS = {
    module.CONVENTION.name: module.CONVENTION for module in (torch, opencv, pillow, matlab)
}
"""Every convention by name."""
