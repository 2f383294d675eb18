"""The exit statuses of every command; docs/exit-status.md is the table for users."""

import enum


class ExitStatus(enum.IntEnum):
    """Exit status of a command."""

    OK = 0
    """Everything was done; a comparison found no difference beyond rounding."""
    FAILED = 1
    """The command ran to its end, but something failed or differs: one of several files could not
    be read, a program does not compile, a check failed. Python also returns it after a
    traceback."""
    WRONG_INPUT = 2
    """The command stopped for a reason that it prints in one line: a wrong option, unusable input,
    or an error of the operating system such as a full disk."""
    STOPPED = 75
    """A signal stopped a training run after a saved step, and `JAXSR_SAY_STOPPED=1` asks for a
    status other than that of a finished run: for job managers, which then start it again."""
    INTERRUPTED = 130
    """Ctrl-C, SIGTERM or SIGHUP ended the command, without a saved training step."""
    CLOSED_PIPE = 141
    """The reader of the output has closed it, as after `| head`; a shell shows the same for
    SIGPIPE."""
