"""Photos in tar shards and LMDBs, which their own libraries wrote."""

import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from jaxsr.data.archives import archived_files, is_archive
from jaxsr.data.photos import open_photos
from jaxsr.errors import InputError

RNG = np.random.default_rng(0)
PHOTOS = {f"{n:04}": RNG.integers(0, 256, (20 + n, 24, 3), np.uint8) for n in range(5)}


def encoded(pixels, format="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def write_tar(path, contents):
    with tarfile.open(path, "w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def tar_shards(folder):
    """As WebDataset has them: a sample's files by its name."""
    names = [*PHOTOS]
    for number, part in enumerate((names[:3], names[3:])):
        contents = {}
        for name in part:
            contents |= {f"{name}.png": encoded(PHOTOS[name]), f"{name}.json": b"{}"}
        write_tar(folder / f"shard-{number}.tar", contents | {"._0000.png": b"of macOS"})
    return [f"shard-{int(name) // 3}.tar/{name}.png" for name in names]


def lmdb_of_photos(folder):
    """As BasicSR has them: keys without an ending."""
    lmdb = pytest.importorskip("lmdb", reason="the extra archives is not installed")
    environment = lmdb.open(str(folder / "photos.lmdb"), map_size=2**24)
    with environment.begin(write=True) as transaction:
        for name, pixels in PHOTOS.items():
            transaction.put(name.encode(), encoded(pixels))
    environment.close()
    (folder / "photos.lmdb" / "meta_info.txt").write_text("0000.png (20,24,3) 1\n")
    return [f"photos.lmdb/{name}" for name in PHOTOS]


@pytest.mark.parametrize("write", [tar_shards, lmdb_of_photos])
@pytest.mark.parametrize("check", ["decode", "header"])
def test_photos_are_read_where_they_lie(write, check, tmp_path):
    names = write(tmp_path)
    photos = open_photos(tmp_path, crop=16, check=check, cache_bytes=0)
    assert photos.names == tuple(names)
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    for index in (4, 0, 2, 0):
        pixels = PHOTOS[f"{index:04}"]
        np.testing.assert_array_equal(photos.read(index), pixels)
        crop = photos.read_crop(index, top=2, left=3, side=16)
        np.testing.assert_array_equal(crop, pixels[2:18, 3:19])
        assert photos.paths[index].stat().st_size == len(encoded(pixels))
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def test_one_archive_among_others_and_beside_files(tmp_path):
    tar_shards(tmp_path)
    assert open_photos(tmp_path / "shard-1.tar", crop=16).names == (
        "shard-1.tar/0003.png",
        "shard-1.tar/0004.png",
    )
    (tmp_path / "plain.png").write_bytes(encoded(PHOTOS["0001"][::-1]))
    photos = open_photos(tmp_path, crop=16)
    assert photos.names[0] == "plain.png" and len(photos) == 6
    training, held_out = photos.split(0.3)
    assert {*training.names, *held_out.names} == {*photos.names}


def test_copies_in_two_archives_are_held_out_together(tmp_path):
    write_tar(tmp_path / "a.tar", {"x.png": encoded(PHOTOS["0000"])})
    write_tar(tmp_path / "b.tar", {"y.png": encoded(PHOTOS["0000"])})
    write_tar(tmp_path / "c.tar", {"z.png": encoded(PHOTOS["0001"])})
    photos = open_photos(tmp_path, crop=16)
    for part in photos.split(0.5):
        assert ("a.tar/x.png" in part.names) == ("b.tar/y.png" in part.names)


def test_what_is_wrong_is_named(tmp_path):
    write_tar(tmp_path / "bad.tar", {"a.png": encoded(PHOTOS["0000"])[:60], "b.png": b""})
    with pytest.raises(InputError, match=r"2 of 2 images .*bad\.tar/a\.png \(.*bad\.tar/b\.png \("):
        open_photos(tmp_path, crop=16)
    archive = (tmp_path / "bad.tar").read_bytes()
    (tmp_path / "bad.tar").write_bytes(archive[:530])
    with pytest.raises(InputError, match=r"bad\.tar cannot be read as a tar file"):
        open_photos(tmp_path, crop=16)
    with tarfile.open(tmp_path / "bad.tar", "w:gz") as archive:
        archive.add(__file__, "a.png")
    with pytest.raises(InputError, match=r"bad\.tar cannot be read as a tar file .* compression"):
        open_photos(tmp_path, crop=16)


def test_links_and_names_that_lead_outside_stay_inside(tmp_path):
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        member, content = tarfile.TarInfo("../../up.png"), encoded(PHOTOS["0000"])
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    (file,) = archived_files(tmp_path / "odd.tar")
    assert file.open().read() == content


def test_a_damaged_lmdb_is_one_line(tmp_path):
    pytest.importorskip("lmdb", reason="the extra archives is not installed")
    (tmp_path / "data.mdb").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"data\.mdb cannot be read as an LMDB"):
        open_photos(tmp_path, crop=16)


@pytest.mark.parametrize("write", [tar_shards, lmdb_of_photos])
def test_processes_that_load_data_get_the_files(write, tmp_path):
    write(tmp_path)
    for file in (
        f for path in tmp_path.rglob("*") if is_archive(path) for f in archived_files(path)
    ):
        sent = pickle.loads(pickle.dumps(file))
        assert (sent, sent.size, sent.content()) == (file, file.size, file.content())
