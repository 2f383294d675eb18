"""Infrared splits: the layouts people have, everything wrong found before training, the order."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxsr.data.host_cache import PixelCache
from jaxsr.data.infrared import open_split, open_training, to_gray
from jaxsr.data.scenes import open_scenes
from jaxsr.data.split_lists import read_list
from jaxsr.errors import InputError
from tests.data.infrared_batches import infrared_batches, infrared_data


def _picture(path, mode="L", size=(40, 30), seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def _mask(path, size=(40, 30), mode="L", value=255):
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.zeros((size[1], size[0]), np.uint8)
    mask[5:8, 10:14] = value
    Image.fromarray(mask).convert(mode).save(path)


@pytest.fixture
def data_set(tmp_path):
    """`images/NAME.png`, `masks/NAME.png`, `trainval.txt`, `test.txt`."""
    for number in range(12):
        size = (40 + number, 30)
        _picture(tmp_path / "images" / f"Misc_{number}.png", size=size, seed=number)
        _mask(tmp_path / "masks" / f"Misc_{number}.png", size=size)
    _write(tmp_path / "trainval.txt", range(9))
    _write(tmp_path / "test.txt", range(9, 12))
    return tmp_path


def _write(path, numbers, line="Misc_{}"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(line.format(n) for n in numbers))  # no newline at the end, as found


def test_the_published_layout(data_set):
    train, validation = open_training(data_set, validation=0.2)
    assert len(train) + len(validation) == 9 and len(validation) >= 1
    assert not set(train.names) & set(validation.names)
    test = open_split(data_set, "test")
    assert test.names == ("Misc_9", "Misc_10", "Misc_11")
    image, mask = test.read(1)
    assert image.shape == (30, 50, 3) and mask.sum() == 12 and mask[5, 10] == 1
    assert test.target_pixels.tolist() == [12, 12, 12]
    assert test.sizes.tolist() == [[30, 49], [30, 50], [30, 51]]
    assert test.nbytes == 4 * 30 * (49 + 50 + 51)


@pytest.mark.parametrize(
    ("lists", "line"),
    [
        ({"trainval": "trainval.txt", "test": "test.txt"}, "Misc_{}"),
        ({"trainval": "train.txt", "test": "test.txt"}, "Misc_{}.png"),
        ({"trainval": "train.txt", "test": "val.txt"}, "images/Misc_{}.png"),
        ({"trainval": "img_idx/train_NUAA.txt", "test": "img_idx/test_NUAA.txt"}, "Misc_{}"),
        ({"trainval": "idx_427/trainval.txt", "test": "idx_427/test.txt"}, "Misc_{}\r"),
    ],
)  # fmt: skip
def test_lists_are_found_where_people_have_them(data_set, lists, line):
    for name in ("trainval.txt", "test.txt"):
        (data_set / name).unlink()
    _write(data_set / lists["trainval"], range(9), line)
    _write(data_set / lists["test"], range(9, 12), line)
    assert len(open_split(data_set, "train")) == 9
    assert open_split(data_set, "test").names == ("Misc_9", "Misc_10", "Misc_11")


@pytest.mark.parametrize("suffix", ["_pixels0", "_mask", "_gt"])
def test_masks_may_have_a_suffix_and_other_folders(data_set, suffix):
    (data_set / "images").rename(data_set / "img")
    (data_set / "masks").rename(data_set / "labels")
    for file in (data_set / "labels").iterdir():
        file.rename(file.with_stem(file.stem + suffix))
    assert len(open_split(data_set, "train")) == 9


def test_several_places_with_lists_ask_for_a_choice(data_set):
    (data_set / "trainval.txt").unlink()
    _write(data_set / "50_50" / "train.txt", range(4))
    _write(data_set / "80_20" / "train.txt", range(7))
    with pytest.raises(ValueError, match=r"50_50/train\.txt, 80_20/train\.txt.*--lists"):
        open_split(data_set, "train")
    assert len(open_split(data_set, "train", lists="80_20")) == 7
    with pytest.raises(FileNotFoundError, match="no folder 60_40"):
        open_split(data_set, "train", lists="60_40")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_masks_of_any_mode_are_one_channel(data_set, mode):
    if mode == "I;16":
        wide = np.zeros((30, 49), np.uint16)
        wide[5:8, 10:14] = 65535
        Image.fromarray(wide).save(data_set / "masks" / "Misc_9.png")
    else:
        _mask(data_set / "masks" / "Misc_9.png", size=(49, 30), mode=mode)
    _, mask = open_split(data_set, "test").read(0)
    want = np.zeros((30, 49), np.uint8)
    want[5:8, 10:14] = 1
    np.testing.assert_array_equal(mask, want)


def test_masks_of_zero_and_one_and_in_the_alpha_channel(data_set):
    _mask(data_set / "masks" / "Misc_9.png", size=(49, 30), value=1)
    colour = np.zeros((30, 50, 4), np.uint8)
    colour[..., :3], colour[5:8, 10:14, 3] = 200, 255
    Image.fromarray(colour).save(data_set / "masks" / "Misc_10.png")
    test = open_split(data_set, "test")
    assert test.target_pixels.tolist() == [12, 12, 12]


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_images_of_any_mode_have_three_channels(data_set, mode):
    ending = "tif" if mode == "CMYK" else "png"
    (data_set / "images" / "Misc_9.png").unlink()
    _picture(data_set / "images" / f"Misc_9.{ending}", mode, size=(49, 30))
    assert open_split(data_set, "test").read(0)[0].shape == (30, 49, 3)


def test_everything_wrong_is_listed_together_before_training(data_set):
    (data_set / "images" / "Misc_1.png").unlink()
    (data_set / "masks" / "Misc_2.png").unlink()
    _mask(data_set / "masks" / "Misc_3.png", size=(7, 9))
    gray = np.random.default_rng(0).integers(0, 256, (30, 44), np.uint8)
    Image.fromarray(gray).save(data_set / "masks" / "Misc_4.png")
    encoded = (data_set / "images" / "Misc_5.png").read_bytes()
    (data_set / "images" / "Misc_5.png").write_bytes(encoded[: len(encoded) // 2])
    (data_set / "masks" / "Misc_6.png").write_bytes(b"")
    with (data_set / "trainval.txt").open("a") as file:
        file.write("\nMisc_77\n\n")
    with pytest.raises(ValueError) as caught:
        open_training(data_set)
    said = str(caught.value)
    assert "7 of the 10 images" in said and "\n" not in said
    for pattern in (
        r"Misc_1 \(no image\)",
        r"Misc_2 \(no mask\)",
        r"Misc_3 \(image 43×30 px, mask 7×9 px\)",
        r"Misc_4 \(a mask with gray values",
        r"Misc_5 \(.*truncated",
        r"Misc_6 \(zero bytes\)",
        r"Misc_77 \(no image and no mask\)",
        "--mask-threshold",
    ):
        assert re.search(pattern, said), pattern


def test_several_folders_of_masks_are_named(data_set, caplog):
    (data_set / "gt").mkdir()
    open_split(data_set, "test")
    assert "has masks and gt; masks is taken" in caplog.text


def test_masks_with_soft_edges_pass_with_a_line(data_set, caplog):
    soft = np.zeros((30, 49), np.uint8)
    soft[5:8, 10:14], soft[5, 10] = 250, 100
    Image.fromarray(soft).save(data_set / "masks" / "Misc_9.png")
    assert open_split(data_set, "test").target_pixels[0] == 11  # half of white is 127
    assert "1 of the 3 masks" in caplog.text and "Misc_9 among them" in caplog.text
    assert open_split(data_set, "test", mask_threshold=99).target_pixels[0] == 12


@pytest.mark.parametrize("values", [(1, 2), (100, 200), (3, 255)])
def test_numbers_of_classes_and_pictures_are_no_masks(data_set, values):
    mask = np.zeros((30, 49), np.uint8)
    mask[:15], mask[20:25] = values
    if values == (3, 255):
        mask = np.random.default_rng(0).integers(0, 256, (30, 49), np.uint8)
    Image.fromarray(mask).save(data_set / "masks" / "Misc_9.png")
    with pytest.raises(ValueError, match=r"Misc_9 \(a mask with gray values"):
        open_split(data_set, "test")


def _all_masks(data_set, change):
    for path in (data_set / "masks").iterdir():
        Image.fromarray(change(np.asarray(Image.open(path)))).save(path)


def test_masks_that_nothing_can_be_learned_from_stop_the_run(data_set):
    _all_masks(data_set, lambda mask: 255 - mask)
    with pytest.raises(ValueError, match=r"99% of the pixels in the masks of .* invert them"):
        open_training(data_set)
    _all_masks(data_set, np.zeros_like)
    with pytest.raises(ValueError, match=r"no mask of .* has a target pixel; look whether"):
        open_training(data_set)
    assert open_split(data_set, "test").target_pixels.sum() == 0  # false alarms can be measured


def test_a_threshold_above_all_values_is_refused(data_set):
    _all_masks(data_set, lambda mask: mask // 255)
    with pytest.raises(ValueError, match="a mask of 0 and 1, whose values are not above the thr"):
        open_training(data_set, mask_threshold=127)
    assert open_training(data_set)[0].target_pixels.min() == 12


def test_colours_without_black_are_refused(data_set):
    colours = np.full((30, 49, 3), 255, np.uint8)
    colours[5:8, 10:14] = (255, 0, 0)
    path = data_set / "masks" / "Misc_9.png"
    for image in (Image.fromarray(colours), Image.fromarray(colours).quantize(4)):
        image.save(path)
        with pytest.raises(ValueError, match="the colours #ff0000 and #ffffff, neither of which"):
            open_split(data_set, "test")
    colours[(colours == 255).all(-1)] = 0
    Image.fromarray(colours).quantize(4).save(path)
    assert open_split(data_set, "test").target_pixels[0] == 12


def test_the_file_that_the_list_names_is_read(data_set):
    _write(data_set / "test.txt", range(9, 12), line="Misc_{}.png")
    Image.new("L", (49, 30)).save(data_set / "images" / "Misc_9.bmp")
    image = open_split(data_set, "test").read(0)[0]
    want = np.asarray(Image.open(data_set / "images" / "Misc_9.png"))
    np.testing.assert_array_equal(image[..., 0], want)
    _write(data_set / "test.txt", range(9, 12))
    with pytest.raises(ValueError, match=r"Misc_9.bmp and Misc_9.png are different images; keep"):
        open_split(data_set, "test")
    (data_set / "images" / "Misc_9.bmp").unlink()
    Image.new("L", (49, 30)).save(data_set / "masks" / "Misc_9_pixels0.png")
    with pytest.raises(ValueError, match=r"Misc_9.png and Misc_9_pixels0.png are different masks"):
        open_split(data_set, "test")
    (data_set / "test.txt").write_text("Misc_9.png\nMisc_9.bmp")
    with pytest.raises(ValueError, match=r"Misc_9 with the endings \.png and \.bmp"):
        open_split(data_set, "test")


@pytest.mark.parametrize("of_mask", [False, True])
@pytest.mark.parametrize("orientation", [2, 3, 6])
def test_an_image_that_exif_turns_is_refused(data_set, orientation, of_mask):
    _picture(data_set / "images" / "Misc_9.png", size=(30, 30))
    _mask(data_set / "masks" / "Misc_9.png", size=(30, 30))
    path = data_set / ("masks" if of_mask else "images") / "Misc_9.png"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open(path).save(path, exif=exif)
    with pytest.raises(ValueError, match=rf"EXIF turns the image .*orientation {orientation}\)"):
        open_split(data_set, "test")


@pytest.mark.parametrize(
    ("images", "masks"),
    [("Images", "Masks"), ("IRSTD1k_Img", "IRSTD1k_Label"), ("IMG", "GT"), ("img", "label")],
)
def test_folders_have_the_names_of_the_data_sets(data_set, images, masks):
    (data_set / "images").rename(data_set / "a")
    (data_set / "masks").rename(data_set / "b")
    (data_set / "a").rename(data_set / images)
    (data_set / "b").rename(data_set / masks)
    assert len(open_split(data_set, "test")) == 3
    # As IRSTD-1k is downloaded: without lists.
    for name in ("trainval.txt", "test.txt"):
        (data_set / name).unlink()
    train, validation = open_training(data_set)
    assert len(train) + len(validation) == 12
    with pytest.raises(FileNotFoundError, match=r"no test\.txt or val\.txt"):
        open_split(data_set, "test")


def test_a_split_may_have_a_folder_of_its_own(data_set):
    import shutil

    for split, numbers in (("trainval", range(9)), ("test", range(9, 12))):
        for kind in ("images", "masks"):
            (data_set / split / kind).mkdir(parents=True)
            for number in numbers:
                shutil.move(data_set / kind / f"Misc_{number}.png", data_set / split / kind)
        (data_set / f"{split}.txt").unlink()
    for kind in ("images", "masks"):
        (data_set / kind).rmdir()
    train, validation = open_training(data_set)
    assert len(train) + len(validation) == 9
    assert open_split(data_set, "test").names == ("Misc_10", "Misc_11", "Misc_9")


def test_missing_and_empty_lists_are_named(data_set):
    (data_set / "trainval.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"trainval\.txt is empty"):
        open_training(data_set)
    (data_set / "trainval.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no trainval\.txt or train\.txt"):
        open_training(data_set)
    (data_set / "test.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no test\.txt or val\.txt"):
        open_split(data_set, "test")
    with pytest.raises(FileNotFoundError, match="no folder"):
        open_split(data_set / "nowhere", "test")
    (data_set.parent / "data.tar").write_bytes(b"")
    with pytest.raises(ValueError, match=r"data\.tar is a file; .*: unpack an archive"):
        open_split(data_set.parent / "data.tar", "test")
    with pytest.raises(FileNotFoundError, match="masks/NAME"):
        (data_set / "masks").rename(data_set / "other")
        open_split(data_set, "train")


def test_few_levels_of_deep_samples_pass_with_a_line(data_set, caplog):
    path = data_set / "images" / "Misc_9.png"
    with Image.open(path) as image:
        gray = np.asarray(image).astype(np.uint16)
    Image.fromarray(gray * 257).save(path)
    open_split(data_set, "test")
    assert not caplog.text
    Image.fromarray(gray * 2 + 8000).save(path)
    open_split(data_set, "test")
    assert "1 of the 3 images" in caplog.text and "such as Misc_9: samples of more" in caplog.text


def test_validation_never_comes_from_the_test_list(data_set, caplog):
    list_file = data_set / "mine.txt"
    _write(list_file, [7, 8])
    with pytest.raises(
        ValueError, match=r"validation list .* with the training list, such as Misc_7"
    ):
        open_training(data_set, validation=list_file)
    _write(data_set / "trainval.txt", range(7))
    train, validation = open_training(data_set, validation=list_file)
    assert validation.names == ("Misc_7", "Misc_8") and len(train) == 7
    _write(list_file, [8, 9])
    with pytest.raises(ValueError, match="with the test list, such as Misc_9"):
        open_training(data_set, validation=list_file)
    _write(data_set / "trainval.txt", range(10))
    open_training(data_set)
    assert "share 1 image, such as" in caplog.text and "Misc_9" in caplog.text


def test_a_validation_list_may_be_the_data_sets_own(data_set):
    _write(data_set / "trainval.txt", range(7))
    (data_set / "test.txt").unlink()
    _write(data_set / "val.txt", [7, 8])
    for name in ("val.txt", data_set / "val.txt"):
        train, validation = open_training(data_set, validation=Path(name))
        assert validation.names == ("Misc_7", "Misc_8") and len(train) == 7


def test_hidden_files_are_no_images(data_set):
    for image in sorted((data_set / "images").iterdir()):
        image.with_name(f"._{image.name}").write_bytes(b"of a Mac")
    assert len(open_split(data_set, "test"))


def test_held_out_names_stay_when_others_are_added(data_set):
    _, few = open_training(data_set, validation=0.3)
    _write(data_set / "trainval.txt", [8, 7, 6, 5, 4, 3, 2, 1, 0])
    _, again = open_training(data_set, validation=0.3)
    assert set(few.names) == set(again.names) and few.list_hash == again.list_hash
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        open_training(data_set, validation=1.5)


def test_the_hash_is_of_the_sorted_names(data_set):
    import hashlib

    want = hashlib.sha256(b"Misc_10\nMisc_11\nMisc_9\n").hexdigest()
    assert open_split(data_set, "test").list_hash == want


def test_names_once_each_and_in_order(tmp_path):
    file = tmp_path / "list.txt"
    file.write_bytes("\ufeffb\r\na.png\r\nb\r\nfolder\\v1.5\r\n".encode())
    assert read_list(file) == ["b", "a", "v1.5"]


def test_a_file_that_goes_away_is_named(data_set):

    test = open_split(data_set, "test", cache=PixelCache(0))
    (data_set / "images" / "Misc_10.png").unlink()
    with pytest.raises(RuntimeError, match=r"Misc_10 .* no longer is"):
        test.read(1)


def test_gray_is_pillows(data_set):
    image = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    np.testing.assert_array_equal(to_gray(image), np.asarray(Image.fromarray(image).convert("L")))
    data = open_split(data_set, "train")
    gray = np.concatenate([to_gray(data.read(k)[0]).ravel() for k in range(len(data))])
    mean, deviation = data.gray_statistics()
    assert mean == pytest.approx(gray.mean()) and deviation == pytest.approx(gray.std())


def test_batches_visit_every_image_once_an_epoch(data_set):
    data = open_split(data_set, "train")
    with infrared_batches(data, global_batch=4, seed=1, form="index") as stream:
        order = np.concatenate([next(stream)["index"] for _ in range(9)])
    for epoch in order.reshape(4, 9):
        assert sorted(epoch) == list(range(9))
    assert len({tuple(epoch) for epoch in order.reshape(4, 9)}) == 4


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_batches_do_not_depend_on_hosts_or_restarts(data_set, hosts):
    data = open_split(data_set, "train")
    options: dict[str, Any] = {"global_batch": 4, "seed": 7, "channels": 1}
    with infrared_batches(data, **options) as batches:
        want = [next(batches) for _ in range(5)]
    parts = []
    for host in range(hosts):
        with infrared_batches(data, start_step=3, host=host, hosts=hosts, **options) as stream:
            parts.append([next(stream) for _ in range(2)])
    for step in range(2):
        for name, rows in want[3 + step].items():
            got = np.concatenate([part[step][name] for part in parts])
            np.testing.assert_array_equal(got, rows)


def test_canvases_hold_image_mask_and_size(data_set):
    data = open_split(data_set, "train")
    with infrared_batches(data, global_batch=9, seed=0) as stream:
        batch = next(stream)
    with infrared_batches(data, global_batch=9, seed=0, form="index") as stream:
        index = next(stream)["index"]
    assert batch["image"].shape == (9, 3, 30, 48) and batch["mask"].shape == (9, 30, 48)
    for row, number in enumerate(index):
        image, mask = data.read(int(number))
        height, width = batch["size"][row]
        assert (height, width) == mask.shape
        np.testing.assert_array_equal(batch["image"][row, :, :, :width], image.transpose(2, 0, 1))
        np.testing.assert_array_equal(batch["mask"][row, :, :width], mask)
        assert not batch["image"][row, :, :, width:].any()


def test_the_cache_is_sized_by_one_image_before_it_is_filled(data_set, monkeypatch):
    data = infrared_data(open_split(data_set, "train"), channels=1)
    needed = 9 * (30 * 48 * 2 + 8)
    assert sum(array.nbytes for array in data.columns().values()) == needed
    monkeypatch.setattr(
        "jaxsr.data.infrared.Infrared.read", lambda *_: pytest.fail("read before it was sized")
    )
    assert data.fits_device(needed / 2**30) and not data.fits_device((needed - 1) / 2**30)
    with pytest.raises(ValueError, match=r"cache=device needs 0.00 GiB .* raise --resident-gb"):
        data.fits_device(0.0, required=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"global_batch": 3, "hosts": 2}, "hosts=2"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"global_batch": 2, "host": 1}, "host=1"),
        ({"global_batch": 2, "channels": 2}, "channels"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_arguments_out_of_range_are_named(options: Any, said):
    with pytest.raises(ValueError, match=said):
        infrared_batches(open_scenes(2, side=32), seed=0, **options)


def test_real_data(shared_data):
    folder = shared_data / "sirst_v1"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    train, validation = open_training(folder)
    test = open_split(folder, "test")
    assert (len(train) + len(validation), len(test)) == (341, 86)
    assert not (set(train.names) | set(validation.names)) & set(test.names)


def test_a_name_in_two_folders_is_refused(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("a/Misc_1\nb/Misc_1\n")
    with pytest.raises(InputError, match="names Misc_1 in two folders, 'a' and 'b'"):
        read_list(file)


def test_a_mask_is_not_that_of_an_image_whose_name_begins_alike(data_set):
    """`Misc_9_gt` is an image, and its mask is not one of `Misc_9`."""
    for folder in ("images", "masks"):
        (data_set / folder / "Misc_10.png").rename(data_set / folder / "Misc_9_gt.png")
    (data_set / "masks" / "Misc_9.png").unlink()
    (data_set / "test.txt").write_text("Misc_9\nMisc_9_gt\n")
    with pytest.raises(InputError, match=r"Misc_9 \(no mask\)"):
        open_split(data_set, "test")
