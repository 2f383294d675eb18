"""Photos in tar shards and LMDBs, which their own libraries wrote."""

import io
import os
import pickle
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxsr.data.archives import archived_files, is_archive
from jaxsr.data.decode import claims_to_be_picture
from jaxsr.data.photos import open_photos
from jaxsr.data.picture_file import ChangedFileError
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


def linked(name, target, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_links_lead_within_the_archive(tmp_path):
    """As GNU tar writes them: one content, several names."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.png").write_bytes(encoded(PHOTOS["0000"]))
    (folder / "hard.png").hardlink_to(folder / "a.png")
    (folder / "soft.png").symlink_to("a.png")
    subprocess.run(["tar", "-cf", tmp_path / "x.tar", "-C", tmp_path, "photos"], check=True)
    photos = open_photos(tmp_path / "x.tar", crop=16, cache_bytes=0)
    assert photos.names == tuple(f"x.tar/photos/{n}.png" for n in ("a", "hard", "soft"))
    for index in range(3):
        np.testing.assert_array_equal(photos.read(index), PHOTOS["0000"])


def test_what_cannot_be_read_is_named_and_stays_inside(tmp_path):
    content = encoded(PHOTOS["0000"])
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        archive.addfile(linked("link.png", "/etc/passwd", tarfile.SYMTYPE))
        archive.addfile(linked("loop.png", "loop.png", tarfile.SYMTYPE))
        archive.addfile(linked("fifo.png", "", tarfile.FIFOTYPE))
        for name in ("../../up.png", ".thumbs/a.png"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    listing = archived_files(tmp_path / "odd.tar")
    (file,) = listing.files
    assert file.open().read() == content
    assert {path.name for path, _ in listing.unreadable} == {"link.png", "loop.png"}
    assert {path.name for path, _ in listing.passed_over} == {"fifo.png"}
    with pytest.raises(InputError, match=r"2 of 3 images .*link\.png \(a link to /etc/passwd, "):
        open_photos(tmp_path, crop=16)


def test_a_sparse_file_is_refused(tmp_path):
    (tmp_path / "hole.png").write_bytes(encoded(PHOTOS["0000"]))
    os.truncate(tmp_path / "hole.png", 2**20)
    subprocess.run(["tar", "-Scf", "x.tar", "hole.png"], check=True, cwd=tmp_path)
    with pytest.raises(InputError, match=r"hole\.png \(sparse; make the archive without -S"):
        open_photos(tmp_path / "x.tar", crop=16)


def test_of_files_of_one_name_the_last_counts(tmp_path, caplog):
    """As `tar -x` has it."""
    for pixels in (PHOTOS["0000"], PHOTOS["0001"]):
        (tmp_path / "a.png").write_bytes(encoded(pixels))
        subprocess.run(["tar", "-rf", "x.tar", "a.png"], check=True, cwd=tmp_path)
    photos = open_photos(tmp_path / "x.tar", crop=16)
    np.testing.assert_array_equal(photos.read(0), PHOTOS["0001"])
    assert len(photos) == 1 and "a later file of the archive has the same name" in caplog.text


def three_files(headers=None):
    """A tar file of three photos, where each member's header begins, and headers of the second."""
    file, offsets = io.BytesIO(), []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in "abc":
            member, content = tarfile.TarInfo(f"{name}.png"), encoded(PHOTOS["0000"])
            member.size = len(content)
            member.pax_headers = headers or {} if name == "b" else {}
            offsets.append(archive.offset)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue(), offsets[1:]


def damaged_tars():
    """Archives that tarfile silently takes as ended, or fails on with a ValueError."""
    whole, (second, third) = three_files()
    yield "cut in a header", whole[: third + 100]
    yield "cut in a file", whole[: third + 600]
    yield "changed header", whole[: second + 5] + b"\xff" + whole[second + 6 :]
    yield "emptied header", whole[:second] + bytes(512) + whole[second + 512 :]
    yield "two tar files", whole + whole
    for number in ("-99", "abc"):
        yield f"size {number}", three_files({"size": number})[0]
    yield "sparse", three_files({"GNU.sparse.size": "x"})[0]


@pytest.mark.parametrize("archive", [pytest.param(a, id=n) for n, a in damaged_tars()])
def test_a_damaged_tar_is_one_line_and_never_a_part_of_it(archive, tmp_path):
    (tmp_path / "x.tar").write_bytes(archive)
    with pytest.raises(
        InputError, match=r"x\.tar cannot be read as a tar file \(.*; make it again"
    ):
        open_photos(tmp_path, crop=16)


def test_a_tar_file_without_its_end_gets_a_line(tmp_path, caplog):
    tar_shards(tmp_path)
    shard = tmp_path / "shard-1.tar"
    with tarfile.open(shard) as archive:
        end = archive.getmembers()[-2].offset
    shard.write_bytes(shard.read_bytes()[:end])
    assert len(open_photos(shard, crop=16)) == 2
    assert "may be cut short" in caplog.text


def test_compressed_archives_are_not_passed_over_in_silence(tmp_path, caplog):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(__file__, "a.png")
    (tmp_path / "plain.png").write_bytes(encoded(PHOTOS["0001"]))
    assert len(open_photos(tmp_path, crop=16)) == 1
    assert "x.tar.gz: compressed: unpack it" in caplog.text
    with pytest.raises(InputError, match=r"x\.tar\.gz is compressed: unpack it"):
        open_photos(tmp_path / "x.tar.gz", crop=16)


def test_the_first_bytes_of_a_file_are_read_alone(tmp_path):
    """WebDataset's samples have labels and videos beside the photos."""
    write_tar(tmp_path / "x.tar", {"film.mp4": bytes(2**20)})
    (file,) = archived_files(tmp_path / "x.tar").files
    whole, asked = file.part, []
    file.part = lambda offset, size: asked.append(size) or whole(offset, size)
    assert not claims_to_be_picture(file) and sum(asked) <= 8192


def test_one_lmdb_by_two_paths_as_a_file_and_beside_what_is_no_image(tmp_path, caplog, monkeypatch):
    lmdb = pytest.importorskip("lmdb", reason="the extra archives is not installed")
    environment = lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, map_size=2**24)
    with environment.begin(write=True) as transaction:
        transaction.put(b"0000", encoded(PHOTOS["0000"]))
        transaction.put(b"raw", PHOTOS["0000"].tobytes())
    environment.close()
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, tmp_path / "x.lmdb", Path("x.lmdb")):
        assert open_photos(path, crop=16).names == ("x.lmdb/0000",)
    assert "1 of 2 files are not images, such as raw" in caplog.text
    write_tar(tmp_path / "none.tar", {})
    with pytest.raises(InputError, match="no image in"):
        open_photos(tmp_path / "none.tar", crop=16)
    assert "none.tar: it is empty" in caplog.text


def test_a_damaged_lmdb_is_one_line(tmp_path):
    """LMDB's own library ends the process where a page is cut off or damaged."""
    lmdb_of_photos(tmp_path)
    file = tmp_path / "photos.lmdb" / "data.mdb"
    whole, page = file.read_bytes(), 4096
    used = [k for k in range(2, len(whole) // page) if whole[page * k :][:page].strip(b"\0")]
    damaged = [b"nothing", whole[: len(whole) // 2], whole[: 2 * page]]
    damaged += [whole[: page * k] + bytes(16) + whole[page * k + 16 :] for k in used]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"data\.mdb (cannot be read as an|is a damaged) LMDB"):
            open_photos(tmp_path, crop=16)


def test_an_lmdb_that_shrinks_under_a_run_is_one_line(tmp_path):
    """The library maps the file, and ended the process by SIGBUS."""
    lmdb_of_photos(tmp_path)
    photos = open_photos(tmp_path, crop=16, cache_bytes=0)
    sent = pickle.dumps(archived_files(tmp_path / "photos.lmdb" / "data.mdb").files[0])
    os.truncate(tmp_path / "photos.lmdb" / "data.mdb", 4096)
    with pytest.raises(ChangedFileError, match=r"no longer is: the lmdb had .* and is shorter now"):
        photos.read(0)
    with pytest.raises(OSError, match="is shorter now"):
        pickle.loads(sent).content()


@pytest.mark.parametrize("write", [tar_shards, lmdb_of_photos])
def test_processes_that_load_data_get_the_files(write, tmp_path):
    write(tmp_path)
    for file in (
        f for path in tmp_path.rglob("*") if is_archive(path) for f in archived_files(path).files
    ):
        sent = pickle.loads(pickle.dumps(file))
        assert (sent, sent.size, sent.content()) == (file, file.size, file.content())


def _header(kind, content):
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, len(content)
    return member.tobuf() + content + bytes(-len(content) % 512)


def test_headers_that_grow_are_refused(tmp_path):
    """Keywords for all files are copied to each: 2 MB took 5.7 GB. Nested headers recursed."""
    keywords = b"".join(b"%d k%07d=v\n" % (14, n) for n in range(20_000))
    files = b"".join(tarfile.TarInfo(f"{n}.png").tobuf() for n in range(3000))
    tars = {
        "keywords": (_header(tarfile.XGLTYPE, keywords) + files, "20,000 keywords"),
        "nested": (_header(tarfile.GNUTYPE_LONGNAME, b"a\0") * 3000, "recursion"),
    }
    for name, (content, reason) in tars.items():
        path = tmp_path / f"{name}.tar"
        path.write_bytes(content + bytes(1024))
        with pytest.raises(InputError, match=reason):
            archived_files(path)
