"""Files of torch.save whose headers ask for more than they hold."""

import zipfile

import pytest
import torch

from damage import check_damaged
from partial_fc_torch.layer.center_files import load_tensors

HUGE = 10**13
UNSUPPORTED = {
    "stride 0": (lambda: torch.ones(1).expand(HUGE), r"a tensor of shape \(10000000000000,\) of 1 numbers"),
    "overlapping": (lambda: torch.ones(9).as_strided((5, 5), (1, 1)), r"a tensor of shape \(5, 5\) of 9 numbers"),
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
    with pytest.raises(ValueError, match=f"^{path} holds {message}: save dense tensors of .*torch.save.*$"):
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
    with pytest.raises(ValueError, match=f"{path} holds the compressed 'a/data.pkl': save dense"):
        load_tensors(str(path))


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("call", [Call(torch.Tensor, HUGE), Call(bytearray, HUGE), Call(print, "must not run")])
def test_no_function_is_called_and_pytorchs_advice_is_not_passed_on(call, path, capsys):
    torch.save(call, path)
    with pytest.raises(ValueError, match=f"^{path} is damaged, or contains other objects than tensors: .*$") as error:
        load_tensors(str(path))
    assert "weights" not in str(error.value).lower() and "must not" not in capsys.readouterr().out


def everything():
    """What files of trainings hold."""
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


def test_damaged_headers_of_archives(path):
    torch.save(everything(), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def write(header):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, header if name.endswith("data.pkl") else content)

    check_damaged(path, members["a/data.pkl"], load_tensors, write)
    content = path.read_bytes()
    check_damaged(path, content, load_tensors)


def test_damaged_files_of_old_versions(path):
    torch.save(everything(), path, _use_new_zipfile_serialization=False)
    check_damaged(path, path.read_bytes(), load_tensors)
