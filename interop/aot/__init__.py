"""Compiling ahead of time, without the device: chips, programs, reports."""
