"""The checks behind `python -m jaxsr.doctor`."""
