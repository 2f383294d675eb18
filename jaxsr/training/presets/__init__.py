"""Options and presets of jaxsr's own tasks, a file each, for `--help` without torch or JAX."""
