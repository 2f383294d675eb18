"""A script whose import ends the program, as one that parses arguments does."""

raise SystemExit(2)
