"""A checkpoint that the file system does not give is refused, and stays as it is."""

import errno

import numpy as np
import pytest

from jaxsr.interop import checkpoint_record
from jaxsr.interop.checkpoint import Checkpoints, restore_step
from jaxsr.interop.errors import FileAccessError


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
