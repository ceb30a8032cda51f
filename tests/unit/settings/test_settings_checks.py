"""Settings that are refused: by their declarations, together with others, or by the trainer."""

import pytest

import default
from partial_fc.utils.config import SettingsError


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"margins": (0, 0, 0)}, "m1 is 0.0, but must be above 0 and at most 100"),
        ({"margins": (1, 0, -0.4)}, "m3 is -0.4, but must be at least 0"),
        ({"margins": (1, 1e300, 0)}, r"m2 is 1e\+300, but must be at least 0 and at most"),
        ({"models_root": ""}, "models_root is empty: set it, or output"),
        (
            {"sample_rate": 0.1, "sample_ratio": 0.3},
            "sample_rate and sample_ratio are one setting, given as 0.1 and 0.3: set one",
        ),
        *(
            ({"sampling_correction": True, "sample_ratio": ratio}, "sampling_correction weights sampled negatives, but")
            for ratio in (0, [0.1, 0.0, 1.0])
        ),
        ({"cutoff": -1}, "cutoff is -1, but must be at least 0"),
        ({"cutoff": 8, "cutout": 9}, "option cutout is given as 8 and 9: set one"),
        ({"batch_size": 1}, "batch_size is 1, but the batch norms of small need 2 items or more of each rank"),
        *(
            ({name: 1e300}, f"{name} is 1e[+]300, but must be at least 0 and at most 1000000")
            for name in ("lr", "backbone_lr", "memory_bank_lr")
        ),
        ({"lr_func": [1e300], "num_epoch": 1}, "lr_func contains 1e[+]300, but must be at least 0 and at most"),
        ({"max_update": 2**40}, "max_update is .*, but must be at least 0 and at most 1000000000"),
        ({"kept_mb": -2}, "kept_mb is -2, but must be at least -1"),
        ({"layer_options": "kept_mb=1"}, "layer_options: unknown option 'kept_mb': did you mean 'logits_cache_mb'"),
        ({"network_options": "bn_mom=1"}, "network_options: bn_mom is 1.0, but must be at least 0 and below 1"),
        ({"network_options": "dropout=0.4"}, "network_options: dropout is 0.4, but only the torch trainer has this"),
        ({"optimizer_options": "eps=1e-6"}, "optimizer_options has eps, which only the torch trainer takes"),
        ({"num_image": 5822653}, "unknown setting 'num_image': remove it, the number of images is read from the data"),
        ({"weight_decay": -1}, "wd is -1.0, but must be at least 0"),
        *(({kind: "x"}, f"unknown {kind} 'x': did you mean") for kind in ("net_act", "loss", "dataset", "network")),
        ({"lr_steps": [20, 20]}, "schedule is 'steps', .*steps is .*increasing"),
        ({"class_map": "same"}, "class_map maps the classes of a checkpoint: set resume or pretrained"),
        ({"class_map": "same", "resume": "auto"}, "class_map maps"),
        (
            {"new_centers": "mean", "resume": "auto"},
            "new_centers=mean takes the embeddings of a pretrained ",
        ),
        (
            {"new_centers": "mean", "pretrained": "model.pt", "debug": True},
            "new_centers=mean embeds the images",
        ),
        (
            {"resume": "/runs/checkpoint_gpu_0.pt"},
            "resume is /runs/checkpoint_gpu_0.pt, which only the torch trainer reads: train with bash pytorch/run.sh",
        ),
        *(
            ({"resume": f"/runs/model.{end}"}, f"resume is /runs/model.{end}, which holds weights, .* start with --pre")
            for end in ("pt", "pth", "params")
        ),
        ({"rec": "/sets/train.idx"}, "rec is /sets/train.idx, but must be the path of a .rec file, or of a folder"),
        ({"dropout": 0.4}, "dropout is 0.4, but only the torch trainer has this setting: remove it"),
        ({"center_optimizer": "adamw"}, "center_optimizer is 'adamw', but only the torch trainer has this setting"),
        ({"dataset": "100w", "debug": False}, "dataset 100w has no images"),
        *(
            ({"loss": name}, f"loss is '{name}', which only the torch trainer has: train with bash pytorch/run.sh, or ")
            for name in ("adaface", "magface", "curricularface", "own")
        ),
        ({"margin": "own:Margin"}, "margin is 'own:Margin', but only the torch trainer has this setting"),
        ({"network": "vit_t"}, "network is 'vit_t', which only the torch trainer has: choose one of r18, .*, small$"),
        ({"network": "own:network"}, "network is 'own:network', which only the torch trainer has"),
        ({"bach_size": 1}, "unknown setting 'bach_size': did you mean 'batch_size'"),
    ],
)
def test_settings_that_are_refused(changes, message, trainer="mxnet"):
    with pytest.raises(SettingsError, match=f"^{message}"):
        default.generate_config(changes=changes, trainer=trainer)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lr_epochs": [14, 8]}, r".*: epochs is \[14, 8\], but must be increasing numbers"),
        ({"num_epoch": 3, "max_update": 100}, "num_epoch and max_update exclude each other: set one of them"),
        ({"lr_epochs": [3], "lr_steps": [100]}, "lr_epochs and lr_steps exclude each other"),
        ({"lr_func": [1.0], "warmup_epoch": 2}, "schedule is 'factors' .*, but warmup_epoch is set"),
        ({"lr_func": [1.0, 0.1], "num_epoch": 3}, "schedule_options has factors .* for 2 epochs, but num_epoch is 3"),
        ({"lr_func": "step"}, "lr_func is 'step', but must be of type list, .* or in config.py a function"),
        ({"lr_func": lambda epoch: 0.1**epoch}, "lr_func is a function of the epoch, but num_epoch is 0: set num_ep"),
        ({"lr_func": lambda epoch: 1 / epoch, "num_epoch": 2}, "lr_func failed: ZeroDivisionError: division by zero"),
        ({"lr_func": lambda epoch: None, "num_epoch": 2}, "lr_func failed: TypeError: "),
        ({"lr_func": lambda epoch: 1 - epoch, "num_epoch": 3}, "lr_func contains -1.0, but must be at least 0"),
        ({"center_optimizer": "adam"}, "unknown center_optimizer 'adam': did you mean 'adamw'"),
        ({"lr_epochs": [3], "schedule": "cosine"}, "lr_epochs and schedule exclude each other"),
        (
            {"dataset": "emore", "schedule": "steps"},
            r"schedule is 'steps', but schedule_options has no steps: add steps=\[...\]",
        ),
        ({"schedule": "epochs", "lr_steps": []}, r"schedule is 'epochs', but schedule_options has no epochs: add "),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        ({"schedule": "my-module:f"}, "schedule is 'my-module:f', but must be a known name or package.module:name"),
        (
            {"schedule": "polynomial", "schedule_options": "power=0"},
            "schedule is 'polynomial', but .*: power is 0",
        ),
        (
            {"schedule": "cosine", "schedule_options": "power=2"},
            "schedule is 'cosine', but cannot be made with {",
        ),
        (
            {"schedule": "cosine", "schedule_options": "final=2"},
            ".*: final is 2.0, but must be at least 0",
        ),
        *(
            ({"loss": loss, "margin_options": option}, f"{option.partition('=')[0]} is .*, but must be ")
            for loss, options in {
                "adaface": ("m=-1", "m=nan", "h=0", "t_alpha=2", "t_alpha=0", "m=1e300"),
                "magface": ("lambda_g=-5", "l_a=0", "u_a=1e300", "l_m=-0.1", "u_m=True"),
                "curricularface": ("m=-0.5", "m=4"),
            }.items()
            for option in options
        ),
        *(
            ({"optimizer": name, "optimizer_options": option}, f"{option.partition('=')[0]} is .*, but must be ")
            for name in ("sgd", "adamw", "torch.optim:RMSprop", "torch.optim.adam:Adam")
            for option in ("momentum=1", "dampening=-1", "weight_decay=1e300", "betas=(0.9, 1)", "eps=-1", "alpha=nan")
        ),
        (
            {"optimizer": "adamw", "center_optimizer": "adamw", "momentum": 0.5},
            "momentum is 0.5, which sgd alone takes: remove it",
        ),
        (
            {"warmup": "quadratic", "warmup_steps": 5},
            "schedule_options has warmup=quadratic, which is a growth by epoch: set",
        ),
        *(
            ({"optimizer": name, "optimizer_options": "params=5"}, "optimizer_options has params: remove it")
            for name in ("sgd", "adamw", "torch.optim:Adam", "own:Own")
        ),
        ({"schedule": "polynomial", "schedule_options": "power=1e300"}, ".*: power is 1e[+]300, but must be above 0"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam': did you mean 'adamw'"),
        ({"optimizer": "torch.optim:"}, "optimizer is 'torch.optim:', but must be a known name or package.module:name"),
        ({"optimizer_options": "0.9"}, "optimizer_options is '0.9', but must be name=value, separated by commas"),
        (
            {"center_optimizer": "my-module:Lion"},
            "center_optimizer is 'my-module:Lion', but must be a known name or pa",
        ),
        ({"loss": "own"}, "margin is '', but must be a known name or package.module:name"),
        ({"margin": "arcfase"}, "margin is 'arcfase', but must be a known name or package.module:name"),
        ({"loss": "cosface", "margin": "a:b"}, "margin is 'a:b', but loss cosface has 'combined': set loss=own"),
        ({"loss": "adaface", "margin_options": "0.4"}, "margin_options is '0.4', but must be name=value, separated"),
        (
            {"margin_options": "m=0.4"},
            "margin_options has m, but the margin 'combined' takes m1, m2, m3, interclass_filtering_threshold: ",
        ),
        (
            {"loss": "adaface", "margins": (1, 0, 0.4)},
            "margin_options has m[123], but the margin 'adaface' takes m, h, t_alpha: remove it",
        ),
        (
            {"loss": "magface", "interclass_filtering_threshold": 0.3},
            "margin_options has interclass_filtering_threshold, but the margin 'magface' takes l_a, u_a, ",
        ),
        ({"net_se": True}, "net_se is True, but only the mxnet trainer has this setting: remove it"),
        (
            {"network": "rx50"},
            "network is 'rx50', which only the mxnet trainer has: choose one of r18, r34, .*, small, vit_mini, ",
        ),
        ({"network": "own-package:Net"}, "network is 'own-package:Net', but must be a known name or package.module:na"),
    ],
)
def test_settings_of_the_pytorch_trainer_that_are_refused(changes, message):
    test_settings_that_are_refused(changes, message, "torch")


@pytest.mark.parametrize(
    "changes",
    [
        {"task_options": "cutout=112"},
        {"momentum": 0.5, "optimizer": "adamw"},
        {"momentum": 0.5, "center_optimizer": "adamw"},
        {"dataset": "emore", "task": "items", "rec": "own:Items"},
        {"schedule": "factors", "schedule_options": "factors=[1.0,0.1,0.01]", "num_epoch": 3},
        {"optimizer_options": "lr=5.0", "layer_options": "lr=0.5"},
    ],
)
def test_settings_that_just_fit(changes):
    settings = default.generate_config(changes=changes, trainer="torch")
    assert {name: settings[name] for name in changes} == changes
