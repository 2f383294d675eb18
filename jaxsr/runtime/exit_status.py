"""The exit statuses of every command; docs/exit-status.md is the table for users."""

import enum


class ExitStatus(enum.IntEnum):
    """Exit status of a command."""

    OK = 0
    """Everything was done; a comparison found no difference beyond rounding."""
    FAILED = 1
    """The command ran to its end and something failed or differs: a file among others could not be
    read, a program does not compile, a check failed. Python returns it after a traceback, too."""
    WRONG_INPUT = 2
    """The command stopped, for a reason that it prints in one line: a wrong option, input that
    cannot be used, or an error of the operating system such as a full disk."""
    STOPPED = 75
    """A signal stopped a training run after a step that is saved, and `JAXSR_SAY_STOPPED=1` asks to
    tell it from a run that reached its end: for job managers, which then start it again."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, SIGTERM or SIGHUP, where no training step was saved."""
    CLOSED_PIPE = 141
    """Nobody reads the output any more, as after `| head`; what a shell shows for SIGPIPE."""
