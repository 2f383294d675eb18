"""`python -m jaxsr.doctor`."""

from jaxsr.doctor import main
from jaxsr.runtime.cli import run_program

if __name__ == "__main__":
    run_program(main, "doctor")
