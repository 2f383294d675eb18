"""Checkpoints: kept, restored elsewhere, set aside when damaged, refused when foreign."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorstore

from jaxsr.interop.checkpoint import (
    CheckpointError,
    Checkpoints,
    read_notes,
    restore_newest,
    restore_step,
    steps_of,
)
from jaxsr.interop.checkpoint_record import NoDigestsError, read_record
from jaxsr.interop.errors import DamagedFileError
from jaxsr.interop.mesh import MeshShape, make_mesh, place, tree_shardings
from jaxsr.interop.train.step import TrainState


def make_state(seed: int = 0, width: int = 32, mesh: MeshShape | None = None) -> TrainState:
    params = {"net.w": jax.random.normal(jax.random.key(seed), (width, 64)), "net.b": jnp.ones(3)}
    state = TrainState(
        step=jnp.int32(seed),
        params=params,
        buffers={"net.count": jnp.int32(7), "net.cache": jnp.zeros((0, 3))},
        optimizers={"net": optax.adam(1e-3).init(params)},
        ema={},
        key=jax.random.key_data(jax.random.key(seed)),
        failed_step=jnp.int32(0),
    )
    devices = make_mesh(mesh or MeshShape(data=8))
    return place(state, tree_shardings(state, devices))


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_latest_two_and_best_are_kept(tmp_path):
    with Checkpoints(tmp_path, metric="psnr") as checkpoints:
        for step, psnr in enumerate([20.0, 25.0, 24.0, None, 21.0], start=1):
            checkpoints.save(step, make_state(step), None if psnr is None else {"psnr": psnr})
        checkpoints.wait()
        assert checkpoints.steps == [2, 4, 5]
        assert checkpoints.best_step == 2
        restored = checkpoints.restore(make_state())
        assert restored is not None and restored[0] == 5
        assert_equal(restored[1], make_state(5))


def test_a_deletion_that_is_cut_is_no_damage(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(1, 4):
            checkpoints.save(step, make_state(step))
            checkpoints.wait()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    # As a kill leaves it: renamed, and half gone.
    shutil.copytree(tmp_path / "2", tmp_path / ".outdated" / "2")
    shutil.rmtree(tmp_path / ".outdated" / "2" / "state")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


def test_outdated_ones_are_deleted_while_nothing_is_saved(tmp_path, monkeypatch):
    """Orbax's thread moves them; a folder that vanished meanwhile ended the run."""
    in_progress, rmtree = [], shutil.rmtree
    with Checkpoints(tmp_path) as checkpoints:

        def remove(*args, **kwargs):
            in_progress.append(checkpoints._manager.is_saving_in_progress())
            rmtree(*args, **kwargs)

        monkeypatch.setattr("jaxsr.interop.checkpoint.shutil.rmtree", remove)
        for step in range(1, 6):
            checkpoints.save(step, make_state(step))
    assert len(in_progress) > 5 and not any(in_progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


def test_lowest_metric_can_be_best(tmp_path):
    with Checkpoints(tmp_path, metric="loss", best="min", keep=1) as checkpoints:
        for step, loss in enumerate([3.0, 1.0, 2.0], start=1):
            checkpoints.save(step, make_state(step), {"loss": loss})
        checkpoints.wait()
        assert checkpoints.steps == [2, 3]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("saved_on", "restored_on"),
    [
        (MeshShape(data=8), MeshShape(data=4)),
        (MeshShape(data=2), MeshShape(data=8)),
        (MeshShape(data=8), MeshShape(data=2, fsdp=4)),
        (MeshShape(data=1, fsdp=8), MeshShape(data=1)),
    ],
)
def test_restores_onto_another_mesh(tmp_path, saved_on, restored_on):
    state = make_state(3, mesh=saved_on)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state)
        checkpoints.wait()
        like = make_state(0, mesh=restored_on)
        restored = checkpoints.restore(like)
    assert restored is not None
    assert_equal(restored[1], state)
    shardings = jax.tree.map(lambda a: a.sharding, (restored[1], like))
    assert jax.tree.leaves(shardings[0]) == jax.tree.leaves(shardings[1])


def test_nothing_to_restore(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(make_state()) is None


def damage(folder: Path) -> None:
    """Cuts every large file of a checkpoint to half its length."""
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > 500:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_truncated_newest_is_set_aside_with_a_warning(tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.save(2, make_state(2))
    damage(tmp_path / "2")
    with Checkpoints(tmp_path) as checkpoints, caplog.at_level(logging.WARNING):
        restored = checkpoints.restore(make_state())
    assert restored is not None and restored[0] == 1
    assert_equal(restored[1], make_state(1))
    assert "the checkpoint of step 2 is damaged: its record cannot be read" in caplog.text
    assert (tmp_path / "2.damaged").is_dir() and not (tmp_path / "2").exists()


@pytest.mark.parametrize("name", ["record/record", "state/_METADATA", "_CHECKPOINT_METADATA"])
def test_a_pipe_in_a_checkpoint_is_never_opened(tmp_path, caplog, name):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.save(2, make_state(2))
    (tmp_path / "2" / name).unlink()
    os.mkfifo(tmp_path / "2" / name)
    with Checkpoints(tmp_path) as checkpoints, caplog.at_level(logging.WARNING):
        restored = checkpoints.restore(make_state())
    assert restored is not None and restored[0] == 1
    assert f"the checkpoint of step 2 is damaged: {name} is not a regular file" in caplog.text


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("record/record", "record cannot be read"),
        ("_CHECKPOINT_METADATA", "more than such a checkpoint writes"),
        ("metrics/metrics", "more than such a checkpoint writes"),
        ("state/_METADATA", "more than such a checkpoint writes"),
        ("state/manifest.ocdbt", "more than such a checkpoint writes"),
        ("state/d/*", "bytes, for arrays of"),
    ],
)
def test_a_file_of_terabytes_in_a_checkpoint_is_not_read(tmp_path, caplog, name, what):
    with Checkpoints(tmp_path, metric="loss") as checkpoints:
        checkpoints.save(1, make_state(1), {"loss": 1.0})
        checkpoints.save(2, make_state(2), {"loss": 2.0})
    for path in (tmp_path / "2").glob(name):
        os.truncate(path, 2**40)
    with Checkpoints(tmp_path) as checkpoints, caplog.at_level(logging.WARNING):
        restored = checkpoints.restore(make_state())
    assert restored is not None and restored[0] == 1
    assert what in caplog.text and (tmp_path / "2.damaged").is_dir()


def test_a_record_of_ten_thousand_brackets_is_damaged(tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.save(2, make_state(2))
    (tmp_path / "2" / "record" / "record").write_text("[" * 100_000)
    with Checkpoints(tmp_path) as checkpoints, caplog.at_level(logging.WARNING):
        restored = checkpoints.restore(make_state())
    assert restored is not None and restored[0] == 1
    assert "the checkpoint of step 2 is damaged: its record cannot be read" in caplog.text


def test_folders_of_other_names_are_no_checkpoints(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
    for name in ("²", "٣", "007", "-1", "0x5"):
        (tmp_path / name).mkdir()
    assert steps_of(tmp_path) == [1]


def test_only_damaged_checkpoints_is_an_error(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
    damage(tmp_path / "1")
    for _ in range(2):  # the second time, no checkpoint is left to try
        with (
            Checkpoints(tmp_path) as checkpoints,
            pytest.raises(CheckpointError, match=r"no checkpoint in .* is sound .*1\.damaged"),
        ):
            checkpoints.restore(make_state())


def test_a_checkpoint_that_the_other_run_removes_meanwhile_is_no_damage(
    tmp_path, monkeypatch, caplog
):
    for folder, step in ("run", 1), ("later", 2):
        with Checkpoints(tmp_path / folder) as checkpoints:
            checkpoints.save(step, make_state(step))

    def removing(path):
        if path.name == "1":
            path.rename(tmp_path / "gone")
            (tmp_path / "later" / "2").rename(path.with_name("2"))
        return read_record(path)

    monkeypatch.setattr("jaxsr.interop.checkpoint.read_record", removing)
    restored = restore_newest(tmp_path / "run", make_state())
    assert restored is not None and restored[0] == 2 and not caplog.messages
    assert_equal(restored[1], make_state(2))


def forget_record(checkpoint: Path) -> None:
    """Makes a checkpoint one of jaxsr 0.2.0, which wrote no records."""
    shutil.rmtree(checkpoint / "record")
    path = checkpoint / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    del metadata["item_handlers"]["record"]
    path.write_text(json.dumps(metadata))


def test_a_checkpoint_without_digests_only_starts_another_run(tmp_path, caplog):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, make_state(1), {"psnr": 20.0})
    forget_record(tmp_path / "checkpoints" / "1")
    with pytest.raises(NoDigestsError, match=f"--branch-from {tmp_path} --out NEW"):
        Checkpoints(tmp_path / "checkpoints")
    assert read_notes(tmp_path / "checkpoints") is None
    restored = restore_newest(tmp_path / "checkpoints", make_state())
    assert restored is not None and restored[0] == 1
    assert_equal(restored[1], make_state(1))
    assert "was saved without digests: damage cannot be noticed" in caplog.text


def flip(path: Path, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1 << bit
    path.write_bytes(bytes(content))


def flip_data(folder: Path) -> None:
    """In every data file: some hold old nodes of the tree, which nothing reads."""
    for path in (folder / "state").rglob("d/*"):
        flip(path)


def change_metrics(folder: Path) -> None:
    (folder / "metrics" / "metrics").write_text('{"psnr": 99.0}')


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("damage_folder", "reason"),
    [
        (flip_data, "arrays are not as they were saved|ValueError|XlaRuntimeError"),
        (change_metrics, "its metrics or its name are not those that were saved"),
        (lambda f: (f / "metrics" / "metrics").write_text("{"), "its metrics cannot be read"),
        (lambda f: (f / "metrics" / "metrics").unlink(), "its metrics cannot be read"),
        (lambda f: shutil.rmtree(f / "metrics"), "its metrics or its name"),
        (lambda f: (f / "state" / "_METADATA").write_text("{"), "Error"),
        (lambda f: (f / "state" / "_METADATA").unlink(), "Error"),
        (lambda f: shutil.rmtree(f / "state"), "Error"),
        (lambda f: flip(f / "record" / "record"), "its record|is damaged"),
        (lambda f: shutil.rmtree(f / "record"), "it has no record"),
        (lambda f: [p.write_bytes(b"") for p in f.rglob("*") if p.is_file()], "its record cannot"),
    ],
)
def test_a_damaged_checkpoint_is_replaced_by_the_sound_one_before(
    damage_folder, reason, tmp_path, caplog
):
    with Checkpoints(tmp_path, metric="psnr") as checkpoints:
        checkpoints.save(1, make_state(1), {"psnr": 20.0})
        checkpoints.save(2, make_state(2), {"psnr": 21.0})
    damage_folder(tmp_path / "2")
    with Checkpoints(tmp_path, metric="psnr") as checkpoints:
        with caplog.at_level(logging.WARNING):
            restored = checkpoints.restore(make_state())
        assert restored is not None and restored[0] == 1
        assert_equal(restored[1], make_state(1))
        assert checkpoints.best_step == 1
        lines = [line for line in caplog.messages if "is damaged" in line]
        assert len(lines) == 1 and re.search(reason, lines[0]), lines
        assert (tmp_path / "2.damaged").is_dir()
        checkpoints.save(2, make_state(2), {"psnr": 21.0})  # takes the place of the damaged one
    with Checkpoints(tmp_path, metric="psnr") as checkpoints:
        restored = checkpoints.restore(make_state())
        assert restored is not None and restored[0] == 2
        assert_equal(restored[1], make_state(2))


def test_data_exchanged_between_checkpoints_is_noticed(tmp_path):
    """Files that are sound by themselves, and not those of this step."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.save(2, make_state(2))
    shutil.rmtree(tmp_path / "2" / "state")
    shutil.copytree(tmp_path / "1" / "state", tmp_path / "2" / "state")
    with pytest.raises(DamagedFileError, match="arrays are not as they were saved"):
        restore_step(tmp_path, 2, make_state())


def test_notes_of_the_newest_sound_record(tmp_path):
    assert read_notes(tmp_path / "nothing") is None
    with Checkpoints(tmp_path, notes={"batch": 8}) as checkpoints:
        checkpoints.save(1, make_state(1))
    with Checkpoints(tmp_path, notes={"batch": 16}) as checkpoints:
        checkpoints.save(2, make_state(2))
    assert read_notes(tmp_path) == {"batch": 16}
    flip(tmp_path / "2" / "record" / "record")
    assert read_notes(tmp_path) == {"batch": 8}


def test_numpy_arrays_of_no_element_come_back(tmp_path):
    state = {"cache": np.zeros((0, 3), np.float16), "weight": np.ones(2, np.float32)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    assert_equal(restore_step(tmp_path, 1, state), state)


def test_checkpoint_of_another_model_is_refused(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1, width=32))
        checkpoints.wait()
        with pytest.raises(CheckpointError, match=r"belongs to another run: .*net\.w has shape"):
            checkpoints.restore(make_state(0, width=16))
        other = make_state(0)
        other.params["other.w"] = other.params.pop("net.w")
        with pytest.raises(CheckpointError, match=r"lacks 1 entries such as params/other\.w"):
            checkpoints.restore(other)


def test_entries_without_an_array_are_part_of_the_structure(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": np.ones(3), "v": None})
        for other in {"w": np.ones(3)}, {"w": np.ones(3), "v": None, "u": None}:
            with pytest.raises(CheckpointError, match=r"belongs to another run: [uv] is None"):
                checkpoints.restore(other)
        restored = checkpoints.restore({"w": np.zeros(3), "v": None})
        assert restored is not None and restored[1]["v"] is None
    assert checkpoints.steps == [1]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"lr": 0.1}, r"lr is 0\.1, not an array; save it as one: jnp\.asarray\(0\.1\)"),
        ({"k": jax.random.key(1)}, r"k is a random key; save jax\.random\.key_data of it"),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, r"a/b and a\.b have one name in the file"),
    ],
)
def test_a_state_that_could_not_be_read_back_is_refused(tmp_path, state, message):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.save(1, {"w": np.ones(2)} | state)
    assert not checkpoints.steps


def test_a_step_is_saved_once(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(10, {"w": np.ones(2)})
        checkpoints.save(10, {"w": np.ones(2)})
        for step, message in (10, "step 10 with another state"), (3, "step 10, which comes after"):
            with pytest.raises(CheckpointError, match=message):
                checkpoints.save(step, {"w": np.zeros(2)})
        restored = checkpoints.restore({"w": np.zeros(2)})
        assert restored is not None and restored[1]["w"].tolist() == [1, 1]


def test_half_written_checkpoint_is_invisible(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
    # What a killed process leaves: Orbax writes below a temporary name and renames at the end.
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps == [1]


def test_unwritable_folder(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*; choose another"):
        Checkpoints(blocked / "checkpoints")


def test_a_failed_save_ends_the_command(tmp_path):
    """Orbax's other threads of it wait minutes for a folder that was never made."""
    code = f"""
from pathlib import Path
import jax.numpy as jnp
from jaxsr.interop.checkpoint import Checkpoints
from jaxsr.runtime.cli import run_command, run_program

def save(_):
    with Checkpoints(Path({str(tmp_path)!r})) as checkpoints:
        Path({str(tmp_path)!r}, "1.orbax-checkpoint-tmp").symlink_to("elsewhere")
        checkpoints.save(1, {{"weight": jnp.ones(3)}})

run_program(lambda: run_command(save, []), "train")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert f"jaxsr: writing a checkpoint to {tmp_path} failed" in done.stderr.splitlines()[-1]


def widen_chunk(state: Path, **changes: object) -> None:
    store = index(state)
    entries = json.loads(store.read("params.net.b/.zarray").result().value)
    store.write("params.net.b/.zarray", json.dumps(entries | changes).encode()).result()


def index(state: Path, config: dict[str, int] | None = None) -> tensorstore.KvStore:
    base = {"driver": "file", "path": f"{state}/"}
    spec = {"driver": "ocdbt", "base": base} | ({"config": config} if config else {})
    return tensorstore.KvStore.open(spec).result()


def lengthen(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: widen_chunk(state, chunks=[10**9]), "chunks of params.net.b are larger"),
        (lambda state: widen_chunk(state, compressor={"id": "bz2", "level": 1}), "packed by bz2"),
        (lambda state: index(state).write("a/zarr.json", b"{}").result(), "a has another form"),
        (lambda state: (state / "zarr.json").write_text("{}"), "zarr.json is not of a checkpoint"),
        (lambda state: lengthen(state / "_METADATA"), "more than such a checkpoint writes"),
        (lambda state: lengthen(next(state.glob("d/*"))), "bytes, for arrays of"),
    ],
)
def test_a_checkpoint_that_unpacks_to_more_is_not_read(change, reason, tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
        checkpoints.save(2, make_state(2))
    change(tmp_path / "2" / "state")
    with caplog.at_level(logging.WARNING):
        restored = restore_newest(tmp_path, make_state())
    assert restored is not None and restored[0] == 1
    assert_equal(restored[1], make_state(1))
    assert reason in caplog.text


def test_an_index_that_unpacks_to_more_is_not_read(tmp_path, monkeypatch):
    """Nodes of a tree that TensorStore compresses, here of 150 MiB in 20 KB."""
    monkeypatch.setattr("jaxsr.interop.checkpoint_index._MOST_BYTES", 2**27)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(1))
    state = tmp_path / "1" / "state"
    kept = {key: index(state).read(key).result().value for key in index(state).list().result()}
    shutil.rmtree(state / "d")
    for path in (state / "manifest.ocdbt", *state.glob("ocdbt.*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    config = {"max_inline_value_bytes": 2**20, "max_decoded_node_bytes": 2**31 - 1}
    with tensorstore.Transaction() as transaction:
        store = index(state, config).with_transaction(transaction)
        for key, value in kept.items():
            store.write(key, value).result()
        for number in range(150):
            store.write(f"zz{number}", bytes(2**20)).result()
    with pytest.raises(DamagedFileError, match="index unpacks to more than 134217728 bytes"):
        restore_step(tmp_path, 1, make_state())
