"""Checkpoints that cannot be read, and folders that are none, are refused, and stay as they are."""

import errno

import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxsr.interop import checkpoint_record
from jaxsr.interop.checkpoint import Checkpoints, restore_step
from jaxsr.interop.checkpoint_record import NoDigestsError
from jaxsr.interop.errors import CheckpointError, FileAccessError


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_a_failed_read_is_no_damage(tmp_path, monkeypatch, number):
    state = {"a": np.arange(3.0)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)

    def fails(path, **_):
        raise OSError(number, "no", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_record, "read_bounded", fails)
        with pytest.raises(FileAccessError, match="which may be sound; try again"):
            Checkpoints(tmp_path)
        with pytest.raises(FileAccessError, match="which may be sound; try again"):
            restore_step(tmp_path, 1, state)
    assert not [*tmp_path.glob("*.damaged")]
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(state)
    assert restored is not None and restored[0] == 1


def test_folders_that_are_no_checkpoints_stay(tmp_path):
    """Photos by year, in a folder that is given by mistake."""
    (tmp_path / "2022").mkdir()
    (tmp_path / "2022" / "a.jpg").touch()
    (tmp_path / "2023").touch()
    with pytest.raises(CheckpointError, match="2022 is not a checkpoint, though its name"):
        Checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"2022", "2023"}


def test_orbaxs_own_checkpoints_are_named(tmp_path):
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"a": np.arange(3.0)}))
    with pytest.raises(NoDigestsError, match="by Orbax alone; read it with Orbax, and choose"):
        Checkpoints(tmp_path)


@pytest.mark.parametrize("name", ["[2026] project", "a\\b", "run*", "a?b"])
def test_folders_in_which_orbax_would_lose_its_files(tmp_path, name):
    """It takes the path for a pattern when it looks for what its processes wrote."""
    with pytest.raises(CheckpointError, match="with which Orbax loses checkpoints"):
        Checkpoints(tmp_path / name / "run")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["a b", "a#b", "a%20b", "a:b", "a]b", "a{a}b", "a$b", "日本"])
def test_folders_of_other_names_keep_checkpoints(tmp_path, name):
    state = {"a": np.arange(3.0)}
    with Checkpoints(tmp_path / name) as checkpoints:
        checkpoints.save(1, state)
    restored = restore_step(tmp_path / name, 1, state)
    np.testing.assert_array_equal(restored["a"], state["a"])
