"""Common parts of all commands: command line, set-up of JAX, errors, the allocator."""
