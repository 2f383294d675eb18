"""One module per library whose resize is reproduced."""
