"""Options and presets of jaxsr's own tasks, one file each, for `--help` without torch or JAX."""
