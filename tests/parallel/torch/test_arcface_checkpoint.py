"""A training of arcface_torch continues here: the next updates equal torch.optim's from the same state."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch_layer import LOCAL, RANK, SIZE, E, G, all_ranks
from torch_training import build_engine, dummy_images

from arcface_files import Textbook
from partial_fc.data.batch import Batch
from partial_fc.distributed.errors import JobError
from partial_fc.training.loop import LoopState
from partial_fc.training.saved_training import SavedTraining
from partial_fc_torch import CombinedMarginLoss
from partial_fc_torch.arcface_checkpoint import read_checkpoint
from partial_fc_torch.collectives import default_collectives
from partial_fc_torch.pixels import normalized

CLASSES, SHAPE, RATE, DECAY = 8, (3, 4, 4), 0.05, 5e-4
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=RATE, momentum=0.9, weight_decay=DECAY),
    "adamw": partial(torch.optim.AdamW, lr=RATE, weight_decay=DECAY),
}


class Network(nn.Module):
    """Has buffers between its parameters, and a bias that may be frozen.

    Its running statistics are frozen, because in a step they depend on the images of the rank.
    """

    def __init__(self, seed=0, trained=False):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(48, 6)
        self.norm = nn.BatchNorm1d(6)
        self.slopes = nn.PReLU(6)
        self.last = nn.Linear(6, E)
        self.last.bias.requires_grad = trained

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, images):
        return self.last(self.slopes(self.norm(self.first(images.flatten(1)))))


def batch(number):
    """Images (G, 3, 4, 4) uint8 and labels (G,)."""
    rng = np.random.default_rng(number)
    return torch.from_numpy(rng.integers(0, 256, (G, *SHAPE), np.uint8)), torch.from_numpy(rng.integers(0, CLASSES, G))


def trained(name="sgd"):
    """Returns a training by arcface_torch after two updates."""
    textbook = Textbook(Network().train(), CLASSES, E, OPTIMIZERS[name])
    for number in range(2):
        step(textbook, number)
    return textbook


def step(textbook, number):
    images, labels = batch(number)
    for group in textbook.optimizer.param_groups:
        group["lr"] = RATE
    return textbook.step(normalized(images), labels)


def build(name="sgd", ratio=1.0, classes=CLASSES, trained=False):
    margin = partial(CombinedMarginLoss, Textbook.scale, 1.0, 0.0, Textbook.margin)
    rates = lambda num_update: (RATE, RATE)  # noqa: E731
    return build_engine(
        Network(9, trained), classes, ratio, optimizer=name, backbone_optimizer=name, margin=margin, schedule=rates
    )


def find(path, gradient_acc=1):
    return SavedTraining.find(str(path), default_collectives, read_checkpoint, gradient_acc)


def resumed(path, name="sgd", **arguments):
    engine, loop = build(name, **arguments), LoopState()
    data = dummy_images((G // SIZE, *SHAPE), 5, CLASSES)
    find(path).restore(engine, data, loop)
    assert (engine.num_update, loop.num_epoch, data.state()) == (2, 2, {"epoch": 2, "images": 0})
    return engine


def update(engine, number):
    images, labels = batch(number)
    return engine.step(Batch(images[LOCAL], labels[LOCAL].numpy())).item()


def compare(engine, textbook):
    state = engine.backbone.state_dict()
    for name, expected in textbook.backbone.state_dict().items():
        # Sums in float32, in another order.
        np.testing.assert_allclose(state[name], expected, rtol=1e-5, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(all_ranks(engine.layer.rows("weight")), textbook.weight.detach(), rtol=1e-5, atol=2e-6)


@pytest.fixture
def saved(folder):
    """Writes the files of a training, on rank 0."""

    def save(textbook, ranks, **options):
        default_collectives.on_rank_zero("save", lambda: textbook.save(folder, ranks, **options))
        return folder

    return save


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_next_updates_are_those_of_torch_optim(saved, name, ranks):
    textbook = trained(name)
    # A rank takes its running statistics, or the mean if the number of ranks differs; the mean is the training's.
    engine = resumed(f"{saved(textbook, ranks)}/checkpoint_gpu_{ranks - 1}.pt", name)
    if ranks == SIZE:
        engine.average_statistics()
    compare(engine, textbook)
    for number in (2, 3):
        assert update(engine, number) == pytest.approx(step(textbook, number), rel=1e-5)
        compare(engine, textbook)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_running_statistics_are_those_of_the_rank_or_their_mean(saved, ranks):
    textbook = trained()
    engine = resumed(saved(textbook, ranks))
    mean = textbook.backbone.norm.running_mean + (RANK - (SIZE - 1) / 2 if ranks == SIZE else 0)
    torch.testing.assert_close(engine.backbone.norm.running_mean, mean)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_sampled_centers_are_left_out(saved, name):
    folder = saved(trained(name), 2, sampled=3)
    checkpoint = find(folder)
    assert "states of the centers start at zero" in checkpoint.foreign.messages[-1]
    engine = resumed(folder, name, ratio=0.5)
    assert not any(engine.layer.rows(state).any() for state in engine.layer.states)
    assert any(array.any() for array in engine.optimizer.states().values())
    update(engine, 2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_a_parameter_that_was_not_trained_are_zero(saved, name):
    states = resumed(saved(trained(name), 2), name, trained=True).optimizer.states()
    assert all(not array.any() for key, array in states.items() if key.startswith("state:last.bias:"))
    assert all(array.any() for key, array in states.items() if key.startswith("state:last.weight:"))


def test_the_position_and_what_is_missing_are_reported(saved):
    folder = saved(trained(), 2)
    assert find(folder, gradient_acc=2).manifest.num_update == 1
    text = " ".join(find(folder).foreign.messages)
    assert "2 processes" in text and "2 epochs and 2 batches" in text and "no random state" in text
    assert "learning rates are [0.04999" in text


def test_with_a_class_map_other_classes_go_on_in_the_same_epoch(saved):
    textbook = trained()
    class_map = np.array([7, -1, 0, 1])
    checkpoint = replace(find(saved(textbook, 3)), class_map=class_map)
    assert checkpoint.position == (2, 0)
    engine = build(classes=len(class_map))
    fresh = all_ranks(engine.layer.rows("weight"))
    checkpoint.restore(engine, None, LoopState())
    expected = np.where(class_map[:, None] < 0, fresh, textbook.weight.detach().numpy()[class_map])
    np.testing.assert_array_equal(all_ranks(engine.layer.rows("weight")), expected)


def edited(change):
    def edit(textbook, folder):
        content = textbook.content(1, 2)
        change(content)
        torch.save(content, f"{folder}/checkpoint_gpu_1.pt")

    return edit


BAD = {
    "another moment": (edited(lambda content: content.update(epoch=1)), r"of different \(epoch, global_step\)"),
    "no optimizer": (edited(lambda content: content.pop("state_optimizer")), "_1.pt has no state_optimizer"),
    "no count": (edited(lambda content: content.update(global_step="2")), "_1.pt: its global_step is 2"),
    "no centers": (edited(lambda content: content["state_dict_softmax_fc"].clear()), "_1.pt has no tensor .* center"),
    "fewer parameters": (edited(lambda content: content["state_optimizer"]["param_groups"].pop()), "_1.pt .* expected"),
    "another optimizer": (
        edited(lambda content: content["state_optimizer"]["state"][7].update(square_avg=torch.ones(4, E))),
        "_1.pt .* square_avg",
    ),
    "other rows": (edited(lambda content: content.update(state_dict_softmax_fc={"weight": torch.ones(9, E)})), "rows"),
    "no number among the weights": (
        edited(lambda content: content["state_dict_backbone"]["norm.running_var"].fill_(torch.inf)),
        "_1.pt: aux:norm.running_var .* not finite",
    ),
    "a missing rank": (
        lambda textbook, folder: torch.save(textbook.content(2, 3), f"{folder}/checkpoint_gpu_3.pt"),
        "checkpoint_gpu_2.pt",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_on_all_ranks(saved, case):
    textbook = trained()
    folder, (damage, message) = saved(textbook, 2), BAD[case]
    default_collectives.on_rank_zero("damage", damage, textbook, folder)
    with pytest.raises(JobError, match=message):
        find(folder)


def test_files_of_another_training_are_refused_with_what_to_set(saved):
    folder = saved(trained("adamw"), 2)
    with pytest.raises(JobError, match="set optimizer, optimizer_options and momentum"):
        find(folder).restore(build("sgd"), None, LoopState())
    with pytest.raises(JobError, match=f"{CLASSES} classes.* 9"):
        find(folder).restore(build("adamw", classes=9), None, LoopState())


def test_a_folder_without_their_files_is_opened_as_our_checkpoint(folder):
    with pytest.raises(JobError, match="manifest.json does not exist"):
        find(folder)
