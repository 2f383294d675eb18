"""Weights files as people have them: wrapped, prefixed, cut short, or with code inside."""

import argparse
import pickle
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from jaxsr.errors import InputError
from jaxsr.models.weight_files import load_weights, read_weights, strip_prefixes, under_names_of


class Bomb:
    """An object whose unpickling would write a file."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self):
        return (Path.write_text, (self.victim, "run"))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU())


def assert_same(weights, module):
    want = module.state_dict()
    assert set(weights) == set(want)
    for name, value in want.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    "wrapper", [None, "state_dict", "net", "params", "params_ema", "model", "generator_weights"]
)
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_wrapped_and_prefixed_files_are_read(tmp_path, net, wrapper, prefix):
    state = {prefix + name: value for name, value in net.state_dict().items()}
    file = tmp_path / "weights.pth"
    torch.save(state if wrapper is None else {"epoch": 3, wrapper: state, "lr": 1e-4}, file)
    assert_same(read_weights(file), net)


def test_what_torch_itself_adds_to_names_goes(net):
    outer = nn.Sequential()
    outer.append(torch.compile(net))  # type: ignore[arg-type]
    compiled = torch.compile(outer)  # compiled within compiled
    weights = strip_prefixes(compiled.state_dict(), source="test")  # type: ignore[attr-defined]
    assert_same({name.removeprefix("0."): value for name, value in weights.items()}, net)


def test_a_submodule_called_module_keeps_its_name():
    weights = {"module.weight": torch.zeros(1), "other.weight": torch.zeros(1)}
    assert set(strip_prefixes(weights, source="test")) == set(weights)
    with pytest.raises(ValueError, match="holds 'a' both with and without a prefix"):
        strip_prefixes({"a": torch.zeros(1), "_orig_mod.a": torch.zeros(1)}, source="test")


@pytest.mark.parametrize(
    "names", [("params", "params_ema"), ("state_dict", "state_dict_ema"), ("model", "model_ema")]
)
def test_averaged_weights_are_preferred(tmp_path, net, names):
    other = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    file = tmp_path / "weights.pt"
    torch.save({names[0]: other, names[1]: net.state_dict()}, file)
    assert_same(read_weights(file), net)


@pytest.mark.parametrize("file_name", ["last.ckpt", "pytorch_model.bin", "model_best.pth.tar"])
def test_files_of_torch_are_read_under_every_suffix_they_go_by(tmp_path, net, file_name):
    state = {f"network.{name}": value for name, value in net.state_dict().items()}  # Lightning's
    file = tmp_path / file_name
    torch.save({"epoch": 3, "state_dict": state, "hyper_parameters": {"lr": 1e-4}}, file)
    assert_same(under_names_of(net, read_weights(file)), net)


def test_safetensors_are_read(tmp_path, net):
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    assert_same(read_weights(tmp_path / "weights.safetensors"), net)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin", ".tar"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_in_it_is_refused_and_never_run(tmp_path, suffix, zipped):
    file, victim = tmp_path / f"evil{suffix}", tmp_path / "victim"
    torch.save({"x": Bomb(victim)}, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="is refused: it holds Python objects") as error:
        read_weights(file)
    assert "\n" not in str(error.value)
    assert not victim.exists()
    torch.load(file, weights_only=False)  # the bomb is real
    assert victim.exists()


def test_a_plain_pickle_with_code_in_it_is_refused_and_never_run(tmp_path):
    file, victim = tmp_path / "evil.pth", tmp_path / "victim"
    file.write_bytes(pickle.dumps(Bomb(victim)))
    with pytest.raises(ValueError, match=r"evil\.pth (is refused|cannot be read)"):
        read_weights(file)
    assert not victim.exists()


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_another_protocol_is_read_or_one_line(tmp_path, protocol, zipped):
    torch.save(
        {"a": torch.ones(2)},
        tmp_path / "a.pth",
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=zipped,
    )
    plain = pickle.dumps({"a": [1, 2], "b": object()}, protocol)
    (tmp_path / "b.pth").write_bytes(plain)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")  # torch warns of the protocol besides
        for name in ("a.pth", "b.pth"):
            try:
                assert read_weights(tmp_path / name)["a"].tolist() == [1, 1]
            except InputError as error:
                assert "\n" not in str(error)
    assert not heard


def test_an_archive_of_tar_is_to_be_unpacked(tmp_path, net):
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    with tarfile.open(tmp_path / "release.tar", "w") as archive:
        archive.add(tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"release\.tar is an archive of tar.*; unpack it"):
        read_weights(tmp_path / "release.tar")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused_in_one_line(tmp_path, net, suffix, kept):
    file = tmp_path / f"cut{suffix}"
    (torch.save if suffix == ".pt" else save_file)(net.state_dict(), file)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match="cut short, get it again") as error:
        read_weights(file)
    assert "\n" not in str(error.value)


def test_a_flipped_byte_in_the_archive_is_noticed(tmp_path, net):
    file = tmp_path / "flipped.pt"
    torch.save(net.state_dict(), file)
    with zipfile.ZipFile(file) as archive:
        record = next(r for r in archive.infolist() if r.filename.endswith("data.pkl"))
    content = bytearray(file.read_bytes())
    content[record.header_offset] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"flipped\.pt"):
        read_weights(file)


class Allocation:
    """An object whose unpickling allocates memory, by a class that torch's reader allows."""

    def __reduce__(self):
        return (bytearray, (3 * 10**9,))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_asks_for_more_memory_than_its_size_is_refused(tmp_path, net, zipped):
    file = tmp_path / "bytearray.pt"
    state = {**net.state_dict(), "x": Allocation()}
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match="a bytearray, which no state dict has"):
        read_weights(file)


def test_an_archive_that_unpacks_to_more_than_its_size_is_refused(tmp_path):
    stored, packed = tmp_path / "stored.pt", tmp_path / "packed.pt"
    torch.save({"w": torch.zeros(10**6)}, stored)
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(InputError, match=r"an archive of 4,\d+,\d+ bytes when unpacked"):
        read_weights(packed)


def test_a_packed_entry_is_refused(tmp_path):
    """In its bytes no name is seen; the file is larger than what it unpacks to."""
    stored, packed = tmp_path / "stored.pt", tmp_path / "packed.pt"
    torch.save({"x": Allocation()}, stored)
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(packed, "w") as new:
        for entry in old.infolist():
            is_packed = entry.filename.endswith("data.pkl")
            kind = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
            new.writestr(entry.filename, old.read(entry), kind)
    assert b"bytearray" not in packed.read_bytes()
    with pytest.raises(InputError, match=r"data\.pkl is compressed, as torch\.save writes none"):
        read_weights(packed)


def test_a_shape_larger_than_the_file_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "expanded.pt")
    with pytest.raises(InputError, match="claims 4,000,000,000,000 bytes for w, more than the"):
        read_weights(tmp_path / "expanded.pt")


def test_files_of_another_kind_say_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights file at .*absent\.pt; check the path"):
        read_weights(tmp_path / "absent.pt")
    (tmp_path / "weights.h5").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"ends in '\.h5'; weights are read from \.safetensors"):
        read_weights(tmp_path / "weights.h5")
    torch.save({"epoch": 3, "optimizer": {"lr": 1.0}}, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="holds no state dict: found epoch, optimizer, looked for"):
        read_weights(tmp_path / "none.pt")
    torch.save({}, tmp_path / "empty.pt")
    with pytest.raises(ValueError, match="holds no state dict: found nothing"):
        read_weights(tmp_path / "empty.pt")


def test_weights_that_do_not_fit_name_the_first_few(net):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weights = {f"layer{k}.weight": torch.zeros(1) for k in range(5)}
    weights["0.weight"] = torch.zeros(4, 3, 5, 5)
    with pytest.raises(ValueError) as error:
        load_weights(net, weights, source="x.pt")
    said = str(error.value)
    assert "x.pt does not fit Sequential: 6 missing: 0.bias, 1.weight, 1.bias and 3 more" in said
    assert "5 unexpected: layer0.weight, layer1.weight, layer2.weight and 2 more" in said
    assert "1 misshapen: 0.weight is (4, 3, 5, 5), not (4, 3, 3, 3)" in said
    assert "\n" not in said
    assert_same(before, net)  # nothing was loaded in part


@pytest.mark.parametrize("name", ["first", "second"])
def test_one_name_of_a_shared_tensor_suffices(name):
    def tied():
        module = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("first", "second")})
        module["second"].weight = module["first"].weight
        return module

    source, module = tied(), tied()
    weights = source.state_dict()
    weights = {n: v for n, v in weights.items() if n.endswith("bias") or n.startswith(name)}
    load_weights(module, weights, source="test")
    assert_same(module.state_dict(), source)
    with pytest.raises(ValueError, match=r"2 missing: first\.weight, second\.weight;"):
        load_weights(module, {n: weights[n] for n in weights if "bias" in n}, source="test")


def test_values_that_are_not_numbers_are_refused(net):
    weights = net.state_dict()
    weights["0.weight"] = torch.full_like(weights["0.weight"], float("nan"))
    with pytest.raises(ValueError, match=r"holds NaN or infinity in 0\.weight"):
        load_weights(net, weights, source="x.pt")


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinity_is_refused_only_where_the_network_has_none(value):
    def causal():  # as torch's own tutorials mask attention
        network = torch.nn.Linear(3, 3)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(3)
        network.register_buffer("mask", mask)
        return network

    weights = causal().state_dict()
    network = causal()
    load_weights(network, weights, source="w")
    assert_same(weights, network)
    weights["mask"][1, 0] = value
    with pytest.raises(ValueError, match="NaN or infinity in mask"):
        load_weights(network, weights, source="w")


def test_half_precision_weights_become_the_modules_dtype(net):
    weights = {name: value.half() for name, value in net.state_dict().items()}
    fresh = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU())
    load_weights(fresh, weights, source="x.pt")
    assert fresh[0].weight.dtype == torch.float32
    torch.testing.assert_close(fresh[0].weight, net[0].weight, rtol=1e-3, atol=0)  # float16's ulp


def test_names_below_one_attribute_fit_without_it(net):
    fresh = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU())
    lightning = nn.ModuleDict({"net": net})
    load_weights(fresh, lightning.state_dict(), source="x.pt")
    assert_same(fresh.state_dict(), net)


def test_buffers_outside_the_state_dictionary_are_left_out(net):
    net.register_buffer("kept", torch.ones(1), persistent=False)
    load_weights(net, {**net.state_dict(), "kept": torch.zeros(1)}, source="x.pt")
    assert net.kept == 1


def test_whole_numbers_are_no_parameters(net):
    weights = {**net.state_dict(), "0.weight": torch.ones(4, 3, 3, 3, dtype=torch.int8)}
    with pytest.raises(
        InputError, match=r"torch\.int8 for the parameter 0\.weight, which are quan"
    ):
        load_weights(net, weights, source="x.pt")


def test_a_batch_counter_from_older_torch_may_be_absent(net):
    weights = {k: v for k, v in net.state_dict().items() if "num_batches" not in k}
    load_weights(net, weights, source="x.pt")


def test_public_checkpoint_is_read_unmodified(shared_data):
    weights = read_weights(shared_data / "weights" / "fast_srgan_x4_hasnainraz.pt")
    assert sum(value.numel() for value in weights.values()) == 925_646
    assert "neck.0.weight" in weights


@pytest.mark.parametrize("name", ["ema", "ema_state_dict", "model_ema", "ema_model"])
def test_averaged_weights_go_before_the_model(tmp_path, name):
    plain, averaged = ({"weight": torch.full((2, 2), value)} for value in (1.0, 2.0))
    torch.save({"model": plain, name: averaged, "step": 3}, tmp_path / "w.pth")
    assert read_weights(tmp_path / "w.pth")["weight"][0, 0] == 2
    # timm's and Lightning's averages: a dictionary with a count beside the weights.
    torch.save({"model": plain, name: {"module": averaged, "decay": 0.9}}, tmp_path / "w.pth")
    assert read_weights(tmp_path / "w.pth")["weight"][0, 0] == 2
    torch.save({"model": plain, name: {"decay": 0.9}}, tmp_path / "w.pth")
    assert read_weights(tmp_path / "w.pth")["weight"][0, 0] == 1


def test_a_state_dict_that_is_itself_is_refused(tmp_path):
    content: dict = {"epoch": 3}
    content["state_dict"] = content
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="holds no state dict"):
        read_weights(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n<!DOCTYPE html><html>not found</html>", "it is a web page: download the file itself"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "run git lfs pull"),
    ],
)
@pytest.mark.parametrize("suffix", [".pth", ".ckpt", ".safetensors"])
def test_what_people_get_instead_is_named(tmp_path, content, message, suffix):
    (tmp_path / f"w{suffix}").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / f"w{suffix}")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: torch.eye(2).to_sparse(), "weight, which is sparse; save a plain tensor"),
        (torch.eye(2).to(torch.float8_e4m3fn), "float8_e4m3fn, which needs scales"),
        (torch.eye(2, device="meta"), "without values"),
        (lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8), "by torch"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), "nested|cannot be"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_values_are_refused(tmp_path, value, message):
    value = value if isinstance(value, torch.Tensor) else value()
    torch.save({"weight": value}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / "w.pth")


def test_values_that_the_network_cannot_hold_are_refused():
    network = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(ValueError, match="complex numbers in weight, where Linear has real ones"):
        load_weights(network, {"weight": torch.ones(2, 2) * 1j}, source="w")
    wide = torch.full((2, 2), 1e200, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"NaN or infinity in weight, as torch\.float32"):
        load_weights(network, {"weight": wide}, source="w")


def test_an_archive_of_two_tables_is_refused(tmp_path):
    """torch unpacks the entries of one, and Python's reader sees those of the other."""
    stored, file = tmp_path / "stored.pth", tmp_path / "net.pth"
    torch.save({"weight": torch.zeros(1000)}, stored)
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with zipfile.ZipFile(file) as archive:
        table, names = archive.start_dir, archive.namelist()
    content = file.read_bytes()
    packed, end = content[table:-22], bytearray(content[-22:])
    plain, at = bytearray(packed), 0
    for name in names:  # stored entries of as many bytes as the packed ones have
        struct.pack_into("<H", plain, at + 10, zipfile.ZIP_STORED)
        plain[at + 24 : at + 28] = plain[at + 20 : at + 24]
        at += 46 + len(name)
    file.write_bytes(content[:table] + packed + plain + end)
    assert torch.load(file)["weight"].shape == (1000,)
    with zipfile.ZipFile(file) as archive:
        assert all(e.compress_type == zipfile.ZIP_STORED for e in archive.infolist())
    with pytest.raises(InputError, match=r"it does not end as torch\.save ends a file"):
        read_weights(file)


@pytest.mark.parametrize("way", ["further end", "comment", "table elsewhere"])
def test_archives_that_readers_take_for_different_ones_are_refused(tmp_path, way):
    """torch would unpack entries that Python's reader does not see."""
    file = tmp_path / "net.pth"
    torch.save({"weight": torch.zeros(2, 2)}, file)
    content = bytearray(file.read_bytes())
    if way == "further end":
        content += b"PK\x05\x06"
    elif way == "comment":
        content[-2:] = b"\x04\0"
        content += b"PK\x05\x06"
    else:
        record = content.rindex(b"PK\x06\x06")  # torch writes the one for large archives always
        table = struct.unpack_from("<Q", content, record + 48)[0]
        struct.pack_into("<Q", content, record + 48, table - 10)
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"net\.pth cannot be read as a torch file"):
        read_weights(file)


class Wrapper(nn.Module):
    """Its only child has the name of DataParallel's."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 3)


@pytest.mark.parametrize("around", [nn.Identity, nn.DataParallel])
def test_a_child_of_the_name_that_dataparallel_gives_keeps_it(tmp_path, around):
    network = Wrapper()
    saved = around(network) if around is nn.DataParallel else network
    torch.save(saved.state_dict(), tmp_path / "a.pth")
    other = Wrapper()
    load_weights(other, read_weights(tmp_path / "a.pth"), source="a.pth")
    assert_same(other.state_dict(), network)


class WithState(nn.Linear):
    def get_extra_state(self):
        return {"scale": 3}


def test_extra_state_that_is_no_tensor_is_left_out(tmp_path):
    network = nn.Sequential(WithState(2, 3), nn.Linear(3, 1))
    torch.save(network.state_dict(), tmp_path / "a.pth")
    plain = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    load_weights(plain, read_weights(tmp_path / "a.pth"), source="a.pth")
    assert torch.equal(plain.state_dict()["0.weight"], network.state_dict()["0.weight"])


@pytest.mark.parametrize("zipped", [True, False])
def test_figures_and_arguments_beside_the_weights_are_left_out(tmp_path, net, zipped):
    beside = {
        "best": np.float64(3.0),
        "confusion": np.eye(3),
        "args": argparse.Namespace(out=Path("runs"), lr=0.1),
    }
    content = {"state_dict": net.state_dict(), **beside}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    assert_same(read_weights(tmp_path / "a.pth"), net)


def test_the_counters_of_an_average_are_not_the_weights(tmp_path, net):
    counters = {"decay": torch.tensor(0.9), "num_updates": torch.tensor(3)}
    torch.save({"model": net.state_dict(), "ema": counters}, tmp_path / "a.pth")
    assert_same(read_weights(tmp_path / "a.pth"), net)


def test_weights_of_torchs_averaged_model(tmp_path, net):
    torch.save(torch.optim.swa_utils.AveragedModel(net).state_dict(), tmp_path / "a.pth")
    assert_same(read_weights(tmp_path / "a.pth"), net)


def test_a_changed_bit_of_a_tensor_is_noticed(tmp_path):
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "a.pth")
    content = bytearray((tmp_path / "a.pth").read_bytes())
    content[content.find(torch.tensor(500.0).numpy().tobytes()) + 2] ^= 1
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(InputError, match=r"data/0 does not match its checksum.*; it is damaged"):
        read_weights(tmp_path / "a.pth")


def test_files_without_checksums_are_read(tmp_path, net):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(net.state_dict(), tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(before)
    assert_same(read_weights(tmp_path / "a.pth"), net)
