"""TorchFramework: trainings as by train.py, with a user's backbone, and errors of missing devices."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import default
from partial_fc.checkpoint import CheckpointFolder, SavedClasses, read_manifest
from partial_fc.checkpoint.arrays import read_arrays
from partial_fc.checkpoint.layout import BACKBONE, statistics_file
from partial_fc.checkpoint.model_format import TORCH
from partial_fc.data.synthetic import DemoSize, write_demo
from partial_fc.distributed.errors import JobError
from partial_fc.distributed.run_rank import run_rank
from partial_fc.export.model import FaceModel
from partial_fc.training import trainer
from partial_fc.training.saved_training import read_pretrained
from partial_fc.training.schedule import Epochs
from partial_fc.training.tasks import build_task
from partial_fc.training.trainer import train
from partial_fc_torch import build, get_model
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.layer.optimizers import RowOptimizer
from partial_fc_torch.memory_format import format_of
from partial_fc_torch.onnx_export import OnnxExport
from paths import ROOT
from recorded_calls import recorded
from stub_driver import stub_driver

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


class OwnBackbone(nn.Module):
    """A user's backbone, with names and layers that this package does not know."""

    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(16)
        self.embed = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(3 * 7 * 7, 16), nn.BatchNorm1d(16))

    def forward(self, images):
        return self.embed(self.pool(images))


@pytest.fixture
def faces(tmp_path):
    """The folder of a training set."""
    write_demo(tmp_path / "faces", DemoSize(seed=1, identities=10, images_per_identity=4, held_out=20, pairs=20))
    return str(tmp_path / "faces")


def assert_same_embeddings(folder, name, backbone, tolerance=1e-5):
    """Compares the ONNX file of a training with its state_dict in ``backbone``."""
    backbone.eval().load_state_dict(torch.load(folder / f"{name}.pth", weights_only=True))
    images = np.random.default_rng(0).integers(0, 256, (3, 112, 112, 3), np.uint8)
    with torch.no_grad():
        expected = backbone((torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5).numpy()
    assert FaceModel.open(str(folder / f"{name}.onnx")).embed(images) == pytest.approx(expected, abs=tolerance)


def settings_of(folder, **changes):
    plain = {"num_classes": 10, "batch_size": 8, "embedding_size": 16, "frequent": 2}
    plain |= {} if "num_epoch" in changes else {"max_update": 4, "lr_steps": []}
    changes = {**plain, "val_targets": ["demo_val"], "baselines": False, "output": str(folder / "out"), **changes}
    return default.generate_config(changes=changes, trainer="torch")


def test_every_setting_reaches_its_object(tmp_path, monkeypatch):
    """Every value differs from the default and from the others."""
    layers, engines = recorded(monkeypatch, build, "PartialFC"), recorded(monkeypatch, build, "TorchEngine")
    common = {"sampling_correction": True, "momentum": 0.8, "seed": 5, "tile_classes": 64, "logits_cache_mb": 7}
    common |= {"layer_dtype": "bfloat16", "layer_kernel": "torch"}
    of_layer = {"layer_options": "sub_centers=2,center_dtype=bfloat16,unit_copy=never"}
    of_layer |= {"objective": "uniface", "objective_options": "weight=2.0"}
    np.save(tmp_path / "weights.npy", np.arange(1, 11))
    of_layer |= {"sampling": str(tmp_path / "weights.npy")}
    same = {"max_grad_norm": 3.0, "gradient_acc": 2, "ema_decay": 0.75}
    of_margin = {"loss": "own", "margin": "combined", "margins": [1.1, 0.3, 0.2], "loss_s": 30.0}
    changes = {"wd": 0.002, "sample_ratio": [0.5, 0.2], "bank_folder": str(tmp_path), "bf16": True, "debug": True}
    changes |= {"backbone_lr": 0.3, "memory_bank_lr": 0.7, "decay_on": "weights", "image_size": 16}
    changes |= {"part_rates": ["embed=0", "pool=0.25"], "interclass_filtering_threshold": 0.4}
    settings = settings_of(tmp_path, **common, **of_layer, **same, **of_margin, **changes)
    assert TorchFramework().class_bytes(settings) == 2 * 2 * (16 + 16)
    backbone = nn.Sequential()
    backbone.pool, backbone.last = nn.Linear(4, 5), nn.Linear(5, 16)
    backbone.embed = nn.BatchNorm2d(3)
    model_format = TORCH._replace(momentum_convention="steps")
    engine = TorchFramework(backbone).build_engine(
        settings,
        build_task(settings),
        lambda update: update / 10,
        Epochs(20, 10),
        None,
        str(tmp_path / "centers"),
        model_format,
    )
    (layer,), (trained,) = layers, engines
    margin, weights = layer.pop("margin_softmax"), layer.pop("sampling_weights")
    assert weights.tolist() == list(range(1, 11))
    assert (margin.scale, margin.margins, margin.interclass_filtering_threshold) == (30, (1.1, 0.3, 0.2), 0.4)
    assert [head.margins for head in engine.heads] == [None]
    assert layer == {
        **common,
        **{"num_classes": 10, "sample_rate": 0.5, "embedding_size": 16, "optimizer": "sgd", "weight_decay": 0.002},
        **{"prefix": str(tmp_path / "centers"), "momentum_convention": "steps", "collectives": default_collectives},
        **{"folder": str(tmp_path), "on_host": False, "device": torch.device("cpu"), "sub_centers": 2},
        **{
            "center_dtype": "bfloat16",
            "unit_copy": False,
            "objective": "uniface",
            "objective_options": {"weight": 2.0},
        },
    }
    optimizer = engine.layer.row_optimizer
    assert (optimizer.momentum, optimizer.weight_decay, optimizer.momentum_convention) == (0.8, 0.002, "steps")
    expected = {**same, "momentum_convention": "steps", "autocast": torch.bfloat16, "pixels": True, "compiled": False}
    assert {name: trained[name] for name in expected} == expected and trained["frozen"] == [backbone.embed]
    assert engine.rates(2) == pytest.approx((0.3 * 0.2, 0.7 * 0.2))
    of_sgd = engine.optimizer.optimizer
    groups = {(group["weight_decay"], group["rate_factor"]): len(group["params"]) for group in of_sgd.param_groups}
    assert groups == {(0.002, 1.0): 1, (0.002, 0.25): 1, (0.0, 1.0): 1, (0.0, 0.25): 1}
    assert {group["momentum"] for group in of_sgd.param_groups} == {0.8} and of_sgd.momentum_convention == "steps"


def test_every_interval_reaches_its_object(tmp_path, monkeypatch):
    checkpoints, finite = (recorded(monkeypatch, trainer, f"CallBack{name}") for name in ("Checkpoint", "Finite"))
    saves, centers = recorded(monkeypatch, build, "SaveCallback"), recorded(monkeypatch, build, "CenterSave")
    watched = recorded(monkeypatch, default_collectives, "watch")
    changes = {"frequent": 3, "save_every": 4, "checkpoint_every": 5, "checkpoint_minutes": 7.0, "checkpoints_kept": 6}
    changes |= {"step_timeout": 333, "host_timeout": 44, "max_update": 1, "debug": True, "val_targets": []}
    train(settings_of(tmp_path, **changes), TorchFramework(OwnBackbone()))
    ((checkpoint,), (check,), (save,), (center,)) = checkpoints, finite, saves, centers
    assert (checkpoint["frequent"], checkpoint["minutes"], checkpoint["folder"].kept) == (5, 7.0, 6)
    assert checkpoint["loop"].waited_for_data > 0 and {"setting lr", "code", "time"} < checkpoint["origin"].keys()
    assert (check["frequent"], save["frequent"], center["frequent"]) == (3, 4, 4)
    assert center["names"] == ["rank_{}_softmax_weight.pt", "rank_{}_softmax_weight_mom.pt"]
    assert watched[0] == {"seconds": 333, "host_seconds": 44}


def test_a_users_own_backbone(tmp_path, faces):
    backbone = OwnBackbone()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    train(settings_of(tmp_path, rec=faces), TorchFramework(backbone=backbone))
    saved = torch.load(tmp_path / "out" / "backbone.pth", weights_only=True)
    assert saved.keys() == before.keys()
    for name, value in backbone.state_dict().items():
        assert torch.equal(saved[name], value) and not torch.equal(value, before[name])
    assert_same_embeddings(tmp_path / "out", "backbone", backbone)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["updates"] == 4


class Kept(OwnBackbone):
    """Keeps activations of the last batch and a lock, which cannot be copied; has spectral and weight norms."""

    def __init__(self):
        super().__init__()
        self.lock, self.outputs = threading.Lock(), []
        self.pool = nn.Sequential(spectral_norm(nn.Conv2d(3, 4, 3, 2)), nn.AvgPool2d(8), nn.Flatten())
        linear = weight_norm(nn.Linear(4 * 6 * 6, 16))
        self.embed = nn.Sequential(linear, parametrizations.spectral_norm(nn.Linear(16, 16)), nn.BatchNorm1d(16))
        self.pool.register_forward_hook(lambda module, inputs, output: self.outputs.append(output))

    def forward(self, images):
        with self.lock:
            self.attention = super().forward(images)
        return self.attention * 1


def test_a_backbone_that_keeps_activations_and_a_lock_is_averaged_and_saved(tmp_path, faces):
    torch.manual_seed(0)
    backbone = Kept()
    train(settings_of(tmp_path, rec=faces, ema_decay=0.9, save_every=2, verify_every=2), TorchFramework(backbone))
    for name in ("backbone", "backbone_ema"):
        assert_same_embeddings(tmp_path / "out", name, backbone, 1e-4)


class Exported(OwnBackbone):
    """Can be exported until ``allowed`` updates are done."""

    def __init__(self, allowed):
        super().__init__()
        self.allowed = allowed

    def forward(self, images):
        self.allowed -= self.training
        embeddings = super().forward(images)
        return embeddings if self.allowed > 0 else torch.special.i1(embeddings)


@pytest.mark.parametrize("allowed, ends_at", [(1, 0), (3, 4)])
def test_a_failed_export_ends_the_training_early_or_with_a_checkpoint(allowed, ends_at, tmp_path):
    settings = settings_of(tmp_path, debug=True, val_targets=[], max_update=8, save_every=4, checkpoint_every=100)
    with pytest.raises(JobError, match="cannot be exported to ONNX.*i1"):
        train(settings, TorchFramework(Exported(allowed)))
    complete = CheckpointFolder(str(tmp_path / "out" / "checkpoints"), 2).complete()
    assert [update for update, _ in complete] == [ends_at] * bool(ends_at)


class Viewed(nn.Sequential):
    """Uses ``view``, which channels_last does not support."""

    def forward(self, images):
        return self[1](self[0](images).view(images.size(0), -1))


class Volume(nn.Sequential):
    """Uses the channels of an image as a third dimension."""

    def forward(self, images):
        return super().forward(images[:, None])


class Constant(OwnBackbone):
    """The exporter turns its batch size into a constant."""

    def forward(self, images):
        return super().forward(images.reshape(len(images), 3, 112, 112))


class Failing(OwnBackbone):
    def forward(self, images):
        raise IndexError("the user's text")


@pytest.mark.parametrize("kind, message", [(Constant, "fails to run"), (Failing, "IndexError: the user's text")])
def test_a_backbone_that_fails_on_one_item_is_refused_at_the_start(kind, message, tmp_path):
    with pytest.raises(JobError, match=message):
        train(settings_of(tmp_path, debug=True, val_targets=[]), TorchFramework(kind()))
    assert not (tmp_path / "out" / "training.log").exists()


@pytest.mark.parametrize(
    "backbone, expected",
    [
        (Viewed(nn.Conv2d(3, 4, 3, 16), nn.Linear(4 * 7 * 7, 16)), torch.contiguous_format),
        (Volume(nn.Conv3d(1, 2, 3, 16), nn.Flatten(), nn.Linear(2 * 49, 16)), torch.contiguous_format),
        (nn.Sequential(nn.Conv2d(3, 4, 3, 16), nn.Flatten(), nn.Linear(196, 16)), torch.channels_last),
    ],
    ids=["view", "Conv3d", "Conv2d"],
)
def test_the_memory_format_is_one_that_the_backbone_supports(backbone, expected, tmp_path):
    train(settings_of(tmp_path, debug=True, val_targets=[]), TorchFramework(backbone))
    assert format_of(backbone) == expected and (tmp_path / "out" / "backbone.onnx").exists()


class Recorded(TorchFramework):
    """Records the number of centers of each step."""

    def build_layer(self, *arguments):
        layer = super().build_layer(*arguments)
        self.sampled, sample = [], layer.sample

        def recorded(labels):
            index = sample(labels)
            self.sampled.append(len(index))
            return index

        layer.sample = recorded
        return layer


def test_the_sample_ratio_changes_with_the_epoch_also_after_resuming(tmp_path, faces):
    plain = {"rec": faces, "sample_ratio": [0.4, 0.0, 1.0], "max_update": 12, "checkpoint_every": 6}
    whole, resumed = Recorded(OwnBackbone()), Recorded(OwnBackbone())
    train(settings_of(tmp_path, **plain), whole)  # 5 updates of 8 images in an epoch
    (_, last), (update, path) = CheckpointFolder(str(tmp_path / "out" / "checkpoints"), 2).complete()
    train(settings_of(tmp_path, **plain, resume=path, output=str(tmp_path / "again")), resumed)
    assert whole.sampled[:5] == [max(4, number) for number in whole.sampled[:5]]
    assert max(whole.sampled[5:10]) < 10 and whole.sampled[10:] == [10, 10]
    assert update == 6 and resumed.sampled == whole.sampled[6:]
    ((_, again),) = CheckpointFolder(str(tmp_path / "again" / "checkpoints"), 2).complete()
    assert read_manifest(again).files == read_manifest(last).files  # sizes and SHA-256


class Margins(TorchFramework):
    """Records AdaFace's m and h in each step."""

    def build_layer(self, *arguments):
        layer = super().build_layer(*arguments)
        self.options, targets = [], layer.margin.targets

        def recorded(*batch):
            self.options.append((layer.margin.m, layer.margin.h))
            return targets(*batch)

        layer.margin.targets = recorded
        return layer


def test_the_margin_changes_with_each_update_also_after_resuming(tmp_path, faces):
    plain = {"rec": faces, "loss": "adaface", "margin_options": "m=[[1,0.0],[3,0.4]],h=[0.3,0.2],t_alpha=0.5"}
    plain |= {"max_update": 12, "checkpoint_every": 6, "trackers": ["jsonl"]}
    whole, resumed = Margins(OwnBackbone()), Margins(OwnBackbone())
    train(settings_of(tmp_path, **plain), whole)  # 5 updates of 8 images in an epoch
    (_, last), (update, path) = CheckpointFolder(str(tmp_path / "out" / "checkpoints"), 2).complete()
    train(settings_of(tmp_path, **plain, resume=path, output=str(tmp_path / "again")), resumed)
    m, h = [min(0.04 * each, 0.4) for each in range(12)], 5 * [0.3] + 7 * [0.2]
    assert whole.options == [(pytest.approx(each), other) for each, other in zip(m, h)]
    assert update == 6 and resumed.options == whole.options[6:]
    ((_, again),) = CheckpointFolder(str(tmp_path / "again" / "checkpoints"), 2).complete()
    assert read_manifest(again).files == read_manifest(last).files  # sizes and SHA-256, also of AdaFace's averages
    figures = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    logged = {each["num_update"]: each["margin_m"] for each in figures if "margin_m" in each}
    assert logged == {number: whole.options[number - 1][0] for number in range(2, 13, 2)}
    assert "Margin m: 0.04   Margin h: 0.3" in (tmp_path / "out" / "training.log").read_text()
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["margin_options"] == plain["margin_options"]


@pytest.mark.parametrize("u_m, fits", [("[0.6,0.6,0.6,0.55]", False), ("[0.6,0.6,0.55,0.6]", False), ("0.6", True)])
def test_options_that_do_not_fit_in_a_later_epoch_are_refused(tmp_path, u_m, fits):
    settings = settings_of(tmp_path, debug=True, loss="magface", margin_options=f"l_m=[[1,0.1],[4,0.6]],u_m={u_m}")
    with nullcontext() if fits else pytest.raises(ValueError, match="u_m=0.55"):
        build.check_margin(settings)


def test_long_lists_of_options_are_read_once(tmp_path, monkeypatch):
    """A file may have lists of any length, and every update asks for its margin."""
    values = [round(0.3 + 1e-5 * number, 5) for number in range(4000)]
    settings = settings_of(tmp_path, debug=True, loss="adaface", margin_options=f"m={values},h=[0.3,0.2]")
    start = time.process_time()
    build.check_margin(settings)
    assert time.process_time() - start < 10  # 0.4 s; reading the list for each of its values takes minutes
    margins, built = build.margins_by_update(settings, Epochs(100, 1)), []
    as_margin = build.as_margin
    monkeypatch.setattr(build, "as_margin", lambda margin: built.append(margin) or as_margin(margin))
    assert [margins(update).m for update in (1, 2, 100, 101, 102)] == [0.3, 0.3, 0.3, 0.30001, 0.30001]
    assert len(built) == 2 and margins(101).h == 0.2


def test_a_training_with_an_average_and_a_schedule_is_verified_saved_and_resumed(tmp_path, faces):
    plain = {"rec": faces, "num_epoch": 4, "gradient_acc": 2, "ema_decay": 0.9, "checkpoint_every": 5}
    plain |= {"optimizer": "adamw", "decay_on": "weights", "backbone_lr": 0.01, "schedule": "polynomial"}
    plain |= {"warmup_epoch": 1, "verify_every": 5, "sample_ratio": 0.5}
    torch.manual_seed(0)
    train(settings_of(tmp_path, **plain), TorchFramework(OwnBackbone()))  # 2 updates of 2 * 8 images in an epoch
    (last_update, last), (update, path) = CheckpointFolder(str(tmp_path / "out" / "checkpoints"), 2).complete()
    assert (last_update, update) == (8, 5)
    torch.manual_seed(1)
    train(settings_of(tmp_path, **plain, resume=path, output=str(tmp_path / "again")), TorchFramework(OwnBackbone()))
    ((_, again), *_) = CheckpointFolder(str(tmp_path / "again" / "checkpoints"), 2).complete()
    assert read_manifest(again).files == read_manifest(last).files  # sizes and SHA-256
    out = tmp_path / "out"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["updates"] == 8 and summary["verification"].keys() == {"demo_val", "demo_val_ema"}
    first, second = (torch.load(out / f"{name}.pth", weights_only=True) for name in ("backbone", "backbone_ema"))
    assert first.keys() == second.keys() and not torch.equal(first["embed.2.weight"], second["embed.2.weight"])
    for name, validated in (("backbone", "demo_val"), ("backbone_ema", "demo_val_ema")):
        assert_same_embeddings(out, name, OwnBackbone())
        metadata = FaceModel.open(str(out / f"{name}.onnx")).session.get_modelmeta().custom_metadata_map
        assert metadata["verification_set"] == validated
    assert "rates: backbone 0.01, class centers 0.003125" in (out / "training.log").read_text()


def test_the_final_backbone_is_the_mean_over_the_last_epochs(tmp_path, faces):
    plain = {"rec": faces, "num_epoch": 4, "checkpoint_every": 1, "verify_every": 5, "save_every": 5}
    plain |= {"average_checkpoints": 3, "checkpoint_options": "kept=20"}
    torch.manual_seed(0)
    train(settings_of(tmp_path, **plain), TorchFramework(OwnBackbone()))  # 5 updates of 8 images in an epoch
    out, saved = tmp_path / "out", dict(CheckpointFolder(str(tmp_path / "out" / "checkpoints"), 20).complete())
    ends = [read_arrays(os.path.join(saved[update], BACKBONE)) for update in (10, 15, 20)]
    weights = torch.load(out / "backbone.pth", weights_only=True)
    mean = np.mean([arrays["arg:embed.2.weight"] for arrays in ends], axis=0)
    np.testing.assert_allclose(weights["embed.2.weight"], mean, rtol=1e-5, atol=1e-7)
    assert not np.allclose(weights["embed.2.weight"], ends[-1]["arg:embed.2.weight"], rtol=1e-3, atol=1e-5)
    statistics = [read_arrays(os.path.join(saved[update], statistics_file(0))) for update in (10, 15, 20)]
    mean = np.mean([arrays["aux:embed.3.running_mean"] for arrays in statistics], axis=0)
    np.testing.assert_allclose(weights["embed.3.running_mean"], mean, rtol=1e-5, atol=1e-6)
    assert_same_embeddings(out, "backbone", OwnBackbone())
    of_checkpoint = read_pretrained(saved[20], False, default_collectives, lambda *arguments: None)
    np.testing.assert_array_equal(of_checkpoint.weights["arg:embed.2.weight"], weights["embed.2.weight"])
    verified = json.loads((out / "summary.json").read_text())["verification"]
    for update in (12, 20):  # within the mean, and of a complete training that was not verified
        again = tmp_path / f"again{update}"
        train(settings_of(tmp_path, **plain, resume=saved[update], output=str(again)), TorchFramework(OwnBackbone()))
        assert (again / "backbone.onnx").read_bytes() == (out / "backbone.onnx").read_bytes()
        assert json.loads((again / "summary.json").read_text())["verification"] == verified


def test_resuming_without_the_average_removes_its_files(tmp_path):
    plain = {"debug": True, "val_targets": [], "checkpoint_every": 2, "image_size": 16}
    train(settings_of(tmp_path, **plain, ema_decay=0.9), TorchFramework())
    average = {"backbone_ema.pth", "backbone_ema.onnx", "model_ema.safetensors"}
    assert average < set(os.listdir(tmp_path / "out"))
    train(settings_of(tmp_path, **plain, resume="auto", max_update=6), TorchFramework())
    names = set(os.listdir(tmp_path / "out"))
    assert not average & names and {"backbone.pth", "backbone.onnx"} < names


@no_gpu
def test_nccl_without_gpus_is_refused():
    with pytest.raises(ValueError, match="set backend=gloo"):
        TorchFramework(backend="nccl")


@no_gpu
def test_gpus_that_the_installed_build_cannot_use_are_refused(tmp_path):
    """With the libcuda of an older driver, which every build of PyTorch refuses."""
    code = "from partial_fc_torch.build import TorchFramework\nprint(TorchFramework(backend='gloo').device)\n"
    variables = {"LD_LIBRARY_PATH": stub_driver(tmp_path, 8, 11040), "PYTHONPATH": f"{ROOT}:{ROOT / 'pytorch'}"}
    command = [sys.executable, "-c", code + "TorchFramework()"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.stdout == "cpu\n", done.stderr
    message = done.stderr.splitlines()[-1]
    for text in (torch.__version__, "8 GPUs", "CUDA 11.4", "/whl/cu126", "backend=gloo"):
        assert text in message


@no_gpu
@pytest.mark.parametrize(
    "setting, advice",
    [
        ({"gradient_dtype": "bfloat16"}, "gradient_dtype=float32"),
        ({"fp16": True}, "bf16=True"),
        ({"layer_dtype": "float16"}, "layer_options=dtype=bfloat16"),
        ({"layer_dtype": "tf32"}, "layer_options=dtype=auto"),
        ({"center_optimizer": "not_here:Lion"}, "not_here cannot be imported"),
    ],
)
def test_settings_that_this_device_or_environment_lacks_are_refused_and_nothing_is_written(setting, advice, tmp_path):
    with pytest.raises(JobError, match=advice):
        train(settings_of(tmp_path, debug=True, **setting), TorchFramework())
    assert not list(tmp_path.iterdir())


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.1 GiB of which 1.2 GiB is free."


class TooLarge(OwnBackbone):
    """Runs out of memory in its third training step, or when it moves to its device."""

    steps, allowed = 0, 2

    def forward(self, images):
        self.steps += self.training
        if self.steps > self.allowed:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY + "\nException raised from malloc at x.cpp:1")
        return super().forward(images)

    def to(self, *arguments, **options):
        if not self.allowed:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return super().to(*arguments, **options)


@pytest.mark.parametrize("allowed", [0, 2])
def test_out_of_memory_says_what_to_change(allowed, tmp_path, capfd, monkeypatch):
    def ended(code):
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", ended)
    backbone = TooLarge()
    backbone.allowed = allowed
    settings = settings_of(tmp_path, debug=True, val_targets=[])
    with pytest.raises(SystemExit):
        run_rank(default_collectives, lambda: train(settings, TorchFramework(backbone)))
    printed = capfd.readouterr().err
    assert OUT_OF_MEMORY in printed and "Exception raised" not in printed and "bug" not in printed
    for name in ("batch_size", "tile_classes", "logits_cache_mb", "bank_on_gpu=False"):
        assert name in printed


class Momentum(RowOptimizer):
    """A user's optimizer of the centers."""

    states = {"weight_mean": True, "weight_steps": False}

    def __init__(self, weight_decay):
        self.weight_decay = weight_decay

    def update_rows(self, weight, gradient, states, learning_rate):
        states["weight_steps"].add_(1)
        states["weight_mean"].lerp_(gradient, 0.1)
        weight.sub_(states["weight_mean"], alpha=learning_rate)


def test_a_users_optimizer_of_the_centers_is_saved_and_another_one_refuses_its_checkpoint(tmp_path):
    make = partial(settings_of, tmp_path, debug=True, val_targets=[], save_every=4, checkpoint_every=4)
    train(make(center_optimizer=f"{__name__}:Momentum"), TorchFramework())
    path = str(tmp_path / "out" / "checkpoints" / "step-0000000004")
    saved = SavedClasses.of_checkpoint(path, read_manifest(path))
    assert saved.widths == {"weight": 16, "weight_mean": 16, "weight_steps": 1}
    for field in saved.widths:
        rows = torch.load(tmp_path / "out" / f"rank_0_softmax_{field}.pt", weights_only=True)
        assert rows.any() and torch.equal(rows, torch.from_numpy(saved.rows(field, np.arange(10))))
    assert (saved.rows("weight_steps", np.arange(10)) == 4).all()
    other = partial(make, center_optimizer="adagrad", output=str(tmp_path / "other"))
    with pytest.raises(JobError, match="weight_mean, weight_steps .* weight_sum: set center_optimizer"):
        train(other(resume=path), TorchFramework())
    train(other(pretrained=path, class_map="same", max_update=0), TorchFramework())
    weight = torch.load(tmp_path / "other" / "rank_0_softmax_weight.pt", weights_only=True)
    np.testing.assert_array_equal(weight, saved.rows("weight", np.arange(10)))


def test_one_image_per_rank_is_refused():
    settings = default.generate_config(changes={"batch_size": 1, "num_classes": 10}, trainer="torch")
    with pytest.raises(ValueError, match="batch_size is 1"):
        TorchFramework().build_backbone(settings, build_task(settings), TORCH)


def test_a_network_above_the_limit_of_onnx_trains_without_an_onnx_file(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("partial_fc_torch.onnx_export.LARGEST", 10**6)
    train(settings_of(tmp_path, debug=True, val_targets=[]), TorchFramework())
    assert "the weights of small exceed their 2 GiB" in caplog.text
    assert (tmp_path / "out" / "backbone.pth").exists() and not (tmp_path / "out" / "backbone.onnx").exists()
    with pytest.raises(ValueError, match="exceed the 2 GiB of an ONNX file"):
        OnnxExport(get_model("small"), np.empty((0, 3, 112, 112), np.uint8))(0)


@pytest.mark.slow
def test_an_earlier_run_of_mbf_is_refused_with_its_new_name(tmp_path):
    """Earlier versions gave MXNet's network the name of arcface_torch's."""
    plain = {"debug": True, "val_targets": [], "image_size": 16, "resume": "auto", "checkpoint_every": 2}
    train(settings_of(tmp_path, **plain, network="mobilefacenet", max_update=2), TorchFramework())
    with pytest.raises(JobError, match="set network=mobilefacenet"):
        train(settings_of(tmp_path, **plain, network="mbf"), TorchFramework())
    train(settings_of(tmp_path, **plain, network="mobilefacenet"), TorchFramework())
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["updates"] == 4
