"""What every command shares: command line, set-up of JAX, errors, the allocator."""
