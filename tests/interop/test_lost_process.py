"""A job that lost a process says so in one line, whatever noticed it first."""

import pytest
from jax.errors import JaxRuntimeError

from jaxsr.interop import checkpoint
from jaxsr.interop.errors import CheckpointError
from jaxsr.interop.lost_process import LostProcessError, lost_process_error
from jaxsr.runtime.cli import run_command

GLOO = "UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error: Connection reset by peer"


def raised(error: Exception) -> Exception:
    """The error as another library passes it on."""
    try:
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("save failed") from cause
    except RuntimeError as outer:
        return outer


def test_gathering_outside_a_program():
    error = ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")
    assert "Gloo AllGather" in str(lost_process_error(error))


@pytest.mark.parametrize(
    "text", [GLOO, "INTERNAL: NCCL operation failed", "UNAVAILABLE: connected task 1 is unhealthy"]
)
def test_it_is_one_line_of_a_command(text, capsys):
    def command(_: list[str]) -> int:
        raise raised(JaxRuntimeError(text))

    assert run_command(command, []) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxsr: another process of this job ended") and text in line


def test_other_errors_of_xla_are_not_it():
    assert lost_process_error(JaxRuntimeError("INTERNAL: no such operation")) is None
    assert lost_process_error(ValueError("Gloo: unknown name")) is None
    assert lost_process_error(KeyError(GLOO)) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JaxRuntimeError(GLOO), LostProcessError),
        (raised(JaxRuntimeError(GLOO)), LostProcessError),
        (OSError(13, "Permission denied"), CheckpointError),
        (KeyError("loss"), KeyError),
    ],
)
def test_a_save_is_blamed_for_what_files_do_alone(error, kind, tmp_path):
    with pytest.raises(kind), checkpoint._write_errors(tmp_path):
        raise error


def test_an_error_that_names_a_file_of_the_checkpoint_is_of_its_writing(tmp_path):
    with (
        pytest.raises(CheckpointError, match="no space left"),
        checkpoint._write_errors(tmp_path),
    ):
        raise ValueError(f"RESOURCE_EXHAUSTED: Error writing {tmp_path}/5/state/0")
