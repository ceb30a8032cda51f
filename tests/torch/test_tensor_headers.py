"""Files of torch.save whose headers declare more than the files contain."""

import pickle
import zipfile
from functools import partial

import pytest
import torch

from damage import check_damaged, memory_below
from partial_fc_torch import center_files
from partial_fc_torch.center_files import load_tensors
from partial_fc_torch.tensor_headers import check_header

HUGE = 10**13
UNSUPPORTED = {
    "stride 0": (lambda: torch.ones(1).expand(HUGE), r"a tensor of shape \(10000000000000,\) with 1 stored"),
    "overlapping": (lambda: torch.ones(9).as_strided((5, 5), (1, 1)), r"a tensor of shape \(5, 5\) with 9 stored"),
    "float8": (lambda: torch.ones(3).to(torch.float8_e4m3fn), "a tensor of torch.float8_e4m3fn"),
    "meta": (lambda: torch.empty(HUGE, device="meta"), "a tensor of the device meta"),
    "sparse": (lambda: torch.sparse_coo_tensor([[5]], [1.0], (HUGE,)), "a sparse tensor"),
    "sparse rows": (lambda: torch.eye(3).to_sparse_csr(), "a sparse tensor"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "a quantized tensor"),
    "complex": (lambda: torch.ones(3, dtype=torch.complex64), "a tensor of torch.ComplexFloatStorage"),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.pt"


@pytest.mark.filterwarnings("ignore")  # of PyTorch, about kinds of tensors that are new, or going away
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_tensors_are_refused_before_pytorch_reads_them(name, zipped, path, monkeypatch):
    tensor, message = UNSUPPORTED[name]
    torch.save({"weight": tensor()}, path, _use_new_zipfile_serialization=zipped)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ValueError, match=f"^{path} holds {message}.*$"):
        load_tensors(str(path))


def test_compressed_members_are_refused(path, monkeypatch):
    torch.save(torch.zeros(1 << 20), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(ValueError, match=f"{path} holds the compressed 'a/data.pkl'"):
        load_tensors(str(path))


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [Call(torch.Tensor, HUGE), Call(bytearray, HUGE), Call(print, "must not run")])
def test_no_function_is_called_and_pytorchs_advice_is_not_passed_on(call, path, capsys):
    torch.save(call, path)
    with pytest.raises(ValueError, match=f"^{path} is damaged.*$") as error:
        load_tensors(str(path))
    assert "weights" not in str(error.value).lower() and "must not" not in capsys.readouterr().out


DOUBLED = b")" + b"q\x00h\x00\x86" * 60  # nested pairs of twice the same tuple: 2^60 elements to hash
MILLION = b"](" + b"K\x01" * 1_000_000 + b"eq\x01"
STATE = b"}(" + b"".join(b"J" + n.to_bytes(4, "little") + b"N" for n in range(100_000)) + b"uq\x01"
HANGING = {
    "key": b"}" + DOUBLED + b"K\x00s",
    "keys": b"}(" + DOUBLED + b"K\x00K\x01K\x01u",
    "set": b"c__builtin__\nset\n](" + DOUBLED + b"e\x85R",
    "counter": b"ccollections\nCounter\n](" + DOUBLED + b"e\x85R",
    "pairs": b"ccollections\nOrderedDict\n](" + DOUBLED + b"K\x00\x86e\x85R",
    "rebuilt": b"ctorch._tensor\n_rebuild_from_type_v2\n(c__builtin__\nset\nN](" + DOUBLED + b"e\x85NtR",
    "storage": b"(U\x07storagectorch\nFloatStorage\n" + DOUBLED + b"U\x03cpuK\x01tQ",
    "kind": b"(U\x07storage" + DOUBLED + b"U\x010U\x03cpuK\x01tQ",
    "view": b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x01" + DOUBLED + b"K\x00K\x01\x87tQ",
    "shape": b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x01tQK\x00"
    + DOUBLED
    + DOUBLED
    + b"\x89NtR",
    "lists": b"]" + b"q\x00]h\x00ah\x00a" * 60,
    "hashes of one value": b"}("
    + b"".join(b"\x8a\x0c" + (n * (2**61 - 1)).to_bytes(12, "little") + b"N" for n in range(1, 200_000))
    + b"u",
    "marks": b"(" * 9_000_000,
    "dicts": b"(" + b"}" * 9_000_000,
    "copies": b"](c__builtin__\nset\nq\x00" + MILLION + b"\x85R" + b"h\x00h\x01\x85R" * 1000 + b"e",
    "states": b"](ccollections\nOrderedDict\nq\x00)R" + STATE + b"b" + b"h\x00)Rh\x01b" * 3000 + b"e",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", HANGING)
def test_pickles_whose_time_or_memory_exceeds_their_length_are_refused(name, zipped, path):
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=zipped)
    header = b"\x80\x02" + HANGING[name] + b"."
    if zipped:
        replace_header(path, header)
    else:
        parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
        path.write_bytes(b"".join([*parts, pickle.dumps({}, 2), header] if name == "key" else [*parts, header]))
    with memory_below(300), pytest.raises(ValueError, match=f"^{path} is damaged"):
        load_tensors(str(path))


def replace_header(path, header):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, header if name.endswith("data.pkl") else content)


def test_storages_that_together_exceed_the_file_are_refused(path):
    parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {})]
    count = b"J" + (900).to_bytes(4, "little")  # 3600 bytes
    storages = (b"(U\x07storagectorch\nFloatStorage\nU\x01%dU\x03cpu%bNtQ" % (key, count) for key in range(3))
    path.write_bytes(b"".join([*parts, b"\x80\x02](", *storages, b"e.", bytes(5000)]))
    with pytest.raises(ValueError, match="larger than its part of the file"):
        check_header(str(path))


def test_the_header_that_pytorch_reads_is_checked(path):
    torch.save({"a": torch.zeros(1)}, path)
    hidden = path.with_name("hidden.pt")
    hidden.write_bytes(path.read_bytes())
    replace_header(hidden, b"\x80\x02" + HANGING["key"] + b".")
    first = hidden.read_bytes()
    # PyTorch takes the offset in the end record from the start of the file, zipfile takes it from the end record.
    content = bytearray(first + path.read_bytes())
    end = content.rindex(b"PK\5\6")
    content[end + 8 : end + 20] = first[first.rindex(b"PK\5\6") :][8:20]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} is damaged"):
        load_tensors(str(path))


def everything():
    """Returns what files of trainings contain."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    noted = torch.nn.Parameter(torch.ones(2))
    noted.note = 3
    views = [torch.ones(3, 4).t(), torch.ones(10)[3:5], torch.empty(0, 5), torch.tensor(3.0), noted]
    states = [part.state_dict() for part in (model, optimizer, schedule)]
    return {"views": views, "states": states, "plain": {1, 1.5, -5, 2**70, None, "text", torch.float16}}


@pytest.mark.parametrize("zipped", [True, False])
def test_what_trainings_save_is_read(zipped, path):
    torch.save(everything(), path, _use_new_zipfile_serialization=zipped)
    read = load_tensors(str(path))
    for view, expected in zip(read["views"], everything()["views"]):
        assert torch.equal(view, expected) and view.stride() == expected.stride()
    assert read["plain"] == everything()["plain"]
    assert read["states"][2]["milestones"] == {3: 1, 5: 1}


@pytest.mark.parametrize("part", ["header", "archive", "old format"])
def test_damaged_files(part, path):
    torch.save(everything(), path, _use_new_zipfile_serialization=part != "old format")
    if part != "header":
        check_damaged(path, path.read_bytes(), load_tensors)
        return
    with zipfile.ZipFile(path) as archive:
        header = archive.read("a/data.pkl")
    check_damaged(path, header, load_tensors, partial(replace_header, path))


def test_a_file_that_is_swapped_after_its_check_is_not_read(path, monkeypatch):
    def check_and_swap(opened):
        found = check_header(opened)
        torch.save({"a": torch.ones(1)}, path.with_name("other.pt"))
        path.with_name("other.pt").replace(path)
        return found

    torch.save({"a": torch.zeros(1)}, path)
    monkeypatch.setattr(center_files, "check_header", check_and_swap)
    assert load_tensors(str(path))["a"].item() == 0
