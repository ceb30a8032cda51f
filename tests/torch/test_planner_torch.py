"""The planner derives the sizes of PyTorch's backbones from the modules."""

import json

import pytest
import torch

import own_task
from command_line import exit_code
from partial_fc_tools.__main__ import main
from partial_fc_tools.planner import Case, plan
from partial_fc_tools.planner.backbones import SYMBOLS, backbone_sizes
from partial_fc_tools.planner.roofline import Rates, least_times
from paths import ROOT

# Recorded numbers of elements that autograd saves per image: in float32; with autocast in 16 bits and in float32.
# tests/commands/test_planner_check.py compares the memory that follows with that of a process.
SAVED = {
    "r18": (11528448, 11477760, 50688),
    "r50": (17700096, 17649408, 50688),
    "mobilefacenet": (9208832, 9182208, 26624),
    "small": (111104, 108544, 4608),
}


@pytest.mark.parametrize("network", SAVED)
def test_sizes_of_a_module(network):
    """Sizes that MXNet's symbols have are the same; tests/mx/test_planner_backbones.py derives those."""
    case, symbol = Case(1, network=network, trainer="torch"), SYMBOLS[network.replace("mobilefacenet", "mbf")]
    (sizes, mixed), same = map(backbone_sizes, (case, case._replace(fp16=True))), symbol.sizes(512, fp16=False)
    all_full, half, full = SAVED[network]
    assert (sizes.saved_bytes, mixed.saved_bytes) == (4 * all_full, 2 * half + 4 * full)
    assert (sizes.copied_bytes, mixed.copied_bytes, sizes.largest) == (0, 2 * symbol.half_parameters, symbol.largest)
    for name in ("parameters", "statistics", "multiplications", "training_products"):
        assert getattr(sizes, name) == getattr(same, name), name
    assert sizes.largest_parameter == 512 * symbol.head_inputs


def test_sizes_of_a_task_are_those_of_its_items(capsys, tmp_path):
    """Activations are the bytes that autograd saves for a batch, including indices and masks."""
    inputs, _ = own_task.words(10, seed=0)
    model = own_task.network(16, own_task.LETTERS)
    tensors = [*model.parameters(), *model.buffers()]
    weights = {each.untyped_storage().data_ptr() for each in tensors}
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model({name: torch.from_numpy(array) for name, array in inputs.items()})
    settings = {"num_classes": 30, "batch_size": 60, "embedding_size": 16, "network": "own_task:network"}
    settings |= {"task": "own_task:Words", "task_options": "classes=40"}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    words = ["plan", "--trainer", "torch", "--device", "cpu", "--config", str(tmp_path / "settings.json"), "--json"]
    assert exit_code(*words) == exit_code(*words, "--network", "own_task:network") == 2
    network, task = capsys.readouterr().err.splitlines()
    assert "sets network to 'own_task:network'" in network and "sets task to 'own_task:Words'" in task
    assert main([*words, "--trust-code"]) == 0
    sizes = {part["name"]: part["nbytes"] for part in json.loads(capsys.readouterr().out)["memory"]}
    assert sizes["items of a batch"] == sum(array.nbytes for array in inputs.values()) == 60 * 8 * 9
    assert sizes["parameters and statistics"] == 4 * sum(each.numel() for each in tensors if each.is_floating_point())
    measured = sum(each.untyped_storage().nbytes() for place, each in saved.items() if place not in weights)
    assert sizes["activations"] == pytest.approx(measured, rel=0.05)


def test_a_task_that_cannot_be_planned_is_refused(capsys):
    words = ["plan", "--classes", "30", "--network", "own_task:network"]
    for options, message in (
        (["--trainer", "torch", "--task", "own_task:Words", "--task-options", "size=3"], "unknown setting 'size'"),
        (["--trainer", "torch", "--task", "own_task:Reading"], "name a settings.json with --config"),
        (["--trainer", "torch", "--task", "own_task:Absent"], "own_task has no Absent"),
    ):
        assert exit_code(*words, *options) == 2
        assert message in capsys.readouterr().err


def test_a_plan_with_settings_that_save_memory_and_bytes():
    case = Case(1000, 8, network="r50", trainer="torch")
    more = case._replace(activation_checkpointing=True, gradient_dtype="bfloat16", gradient_acc=4)
    plans = [plan(each) for each in (case, more)]
    sizes = [{part.name: part.nbytes for part in planned.parts} for planned in plans]
    # The input of the first block and its recomputed activations: maps of 64 x 112 x 112 and 64 x 56 x 56.
    assert sizes[1]["activations"] == 64 * 4 * 6109440 < sizes[0]["activations"] // 2
    # The blocks of a transformer are equal; the last one is recomputed while the inputs of all blocks are kept.
    assert 64 * backbone_sizes(more._replace(network="vit_mini")).saved_bytes == 109436928
    assert sizes[1]["images of the next batch"] == 4 * sizes[0]["images of the next batch"]
    moved = [{move.name: move.out for move in each.traffic} for each in plans]
    reduced = "all-reduce of the backbone's gradients"
    assert moved[0][reduced] == 2 * moved[1][reduced] and moved[1]["images"] == 4 * moved[0]["images"]
    backbone, again = (least_times(planned, Rates(1.0))[0].seconds for planned in plans)
    assert again == pytest.approx(4 * backbone * 4 / 3, rel=0.01)


def test_the_command_prints_the_size_of_the_network(capsys):
    options = ["plan", "--trainer", "torch", "--classes", "1000", "--network", "r50"]
    main(options)
    assert "r50 has 43.59 M parameters and takes 6.31 GFLOPs for an image" in capsys.readouterr().out
    assert exit_code(*options[:-1], "rx50") == 2


def scale_table():
    """The table of docs/scale.md: 64 images a rank, r = 0.1, 8 ranks a host; the bank is on the GPUs if it fits."""
    rows = []
    for classes in (10, 100, 1000):
        for ranks in (8, 64, 512):
            case = Case(classes * 10**6, ranks, ratio=0.1, network="r50", fp16=True, trainer="torch")
            plans = {name: plan(case._replace(bank=bank)) for name, bank in (("GPU", "gpu"), ("host", "host"))}
            bank = next((name for name, planned in plans.items() if planned.memory("device") <= 31 << 30), "none fits")
            planned = plans.get(bank, plans["host"])
            device, host = planned.memory("device") / 2**30, 8 * planned.memory("host") / 2**30
            backbone, layer = (time.seconds for time in least_times(planned, Rates(1e12, 1e12)))
            *of_layer, all_reduce = (move.out / 1e6 for move in planned.traffic if move.way == "network")
            sent = f"{sum(of_layer):,.0f} + {all_reduce:,.0f}"
            sizes = f"{device:,.1f} | {host:,.0f} | {backbone:,.1f} + {layer:,.1f} | {sent}"
            rows.append(f"| {classes:,} M | {ranks} | {bank} | {sizes} |")
    return rows


def test_the_table_of_the_page_is_current():
    rows = scale_table()
    assert "\n".join(rows) in (ROOT / "docs" / "scale.md").read_text(), "\n".join(rows)
