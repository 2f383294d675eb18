"""The names of the model families; `jaxsr.models.registry` loads them."""

FAMILIES = {
    "fast-srgan": "jaxsr.models.fast_srgan.family",
    "span": "jaxsr.models.span.family",
    "mshnet": "jaxsr.models.mshnet.family",
    "llama": "jaxsr.models.llama.family",
}
"""Module of each family, by the name that users give."""
