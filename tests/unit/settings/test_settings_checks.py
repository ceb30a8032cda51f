"""Settings that are refused: by their declarations, together with others, or by the trainer."""

import pytest

import default
from partial_fc.utils.config import SettingsError

OTHER_TRAINER = "only the torch trainer"


def refused(changes, words, trainer):
    with pytest.raises(SettingsError) as error:
        default.generate_config(changes=changes, trainer=trainer)
    message = str(error.value)
    assert all(word in message for word in words.split(" ... ")), message


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"margins": (0, 0, 0)}, "m1 is 0.0 ... above 0"),
        ({"margins": (1, 1e300, 0)}, "m2 is 1e+300 ... at most"),
        ({"models_root": ""}, "models_root is empty"),
        ({"sample_rate": 0.1, "sample_ratio": 0.3}, "sample_rate and sample_ratio set ... 0.1 and 0.3"),
        *(({"sampling_correction": True, "sample_ratio": each}, "sampling_correction") for each in (0, [0.1, 0.0])),
        ({"cutoff": -1}, "cutoff is -1"),
        ({"batch_size": 1}, "batch norms of small need at least 2 items"),
        *(({name: 1e300}, f"{name} is 1e+300") for name in ("lr", "backbone_lr", "memory_bank_lr")),
        ({"lr_func": [1e300], "num_epoch": 1}, "lr_func contains 1e+300"),
        ({"layer_options": "kept_mb=1"}, "layer_options: unknown option 'kept_mb' (known: ... logits_cache_mb"),
        ({"network_options": "bn_mom=1"}, "network_options: bn_mom is 1.0"),
        ({"network_options": "dropout=0.4"}, f"network_options: dropout is 0.4 ... {OTHER_TRAINER}"),
        ({"optimizer_options": "eps=1e-6"}, f"eps ... {OTHER_TRAINER}"),
        ({"num_image": 5822653}, "unknown setting 'num_image': remove it"),
        ({"weight_decay": -1}, "weight_decay is -1.0"),
        *(({kind: "x"}, f"unknown {kind} 'x' (known: ") for kind in ("net_act", "loss", "dataset", "network")),
        *(({name: 1}, f"unknown setting {name!r}: set lr") for name in ("learning_rate", "learning-rate")),
        *(({name: 1}, "set num_epoch") for name in ("epochs", "num_epochs", "max_epochs")),
        ({"model": "r50"}, "unknown setting 'model': set network"),
        ({"zzz": 1}, "unknown setting 'zzz' (--help lists all settings)"),
        ({"lr_steps": [20, 20]}, "steps is [20, 20] ... increasing"),
        *(({"class_map": "same", "resume": resume}, "class_map maps") for resume in ("", "auto")),
        ({"new_centers": "mean", "resume": "auto"}, "set pretrained"),
        ({"new_centers": "mean", "pretrained": "model.pt", "debug": True}, "debug=True has none"),
        ({"resume": "/runs/checkpoint_gpu_0.pt"}, f"resume ... {OTHER_TRAINER}"),
        *(({"resume": f"/runs/model.{end}"}, "holds weights ... --pretrained") for end in ("pt", "pth", "params")),
        ({"rec": "/sets/train.idx"}, "rec is /sets/train.idx ... .rec file"),
        ({"dropout": 0.4}, f"dropout is 0.4 ... {OTHER_TRAINER}"),
        ({"center_optimizer": "adamw"}, OTHER_TRAINER),
        ({"labels": "labels.npy"}, OTHER_TRAINER),
        ({"labels_per_item": 2}, OTHER_TRAINER),
        ({"teacher": "models/large"}, OTHER_TRAINER),
        ({"objective": "mlcd"}, OTHER_TRAINER),
        ({"objective_options": "scale=2"}, OTHER_TRAINER),
        ({"dataset": "100w", "debug": False}, "dataset 100w has no images"),
        *(({"loss": name}, f"loss is '{name}' ... {OTHER_TRAINER}") for name in ("adaface", "own")),
        ({"margin": "own:Margin"}, OTHER_TRAINER),
        *(({"network": name}, f"network is '{name}' ... {OTHER_TRAINER}") for name in ("vit_t", "own:network")),
        ({"margin_options": "m2=[0.1,0.2]"}, f"m2, which {OTHER_TRAINER}"),
        ({"margins": (1, [0.1, 0.2], 0)}, f"m2, which {OTHER_TRAINER}"),
        ({"margin_options": "ramp=exponential"}, f"ramp is 'exponential' ... {OTHER_TRAINER}"),
        ({"bach_size": 1}, "unknown setting 'bach_size': did you mean 'batch_size'"),
    ],
)
def test_refused_settings(changes, words):
    refused(changes, words, "mxnet")


def _options(setting, *options, **changes):
    return [({**changes, f"{setting}_options": option}, f"{option.partition('=')[0]} is ") for option in options]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"fp16": True, "bf16": True}, "fp16 and bf16"),
        ({"ema_decay": 0.9, "average_checkpoints": 2}, "ema_decay and average_checkpoints"),
        ({"gradient_dtype": "float16"}, "set fp16"),
        *(({name: 2}, f"{name} is 2.0, but there is no teacher") for name in ("teacher_weight", "softmax_weight")),
        ({"teacher_centers": "frozen"}, "there is no teacher: set teacher"),
        ({"teacher": "models/large", "teacher_weight": 0}, "teacher_weight is 0.0, but must be above 0"),
        *(
            ({"teacher": "models/large", "teacher_centers": "initial", "pretrained": "model.pt", **own}, f"{name} also")
            for own, name in (({"class_map": "same"}, "class_map"), ({"new_centers": "mean"}, "new_centers"))
        ),
        ({"lr_epochs": [14, 8]}, "epochs is [14, 8] ... increasing"),
        ({"num_epoch": 3, "max_update": 100}, "num_epoch and max_update exclude each other"),
        ({"lr_epochs": [3], "lr_steps": [100]}, "lr_epochs and lr_steps set schedule"),
        ({"lr_epochs": [3], "schedule": "cosine"}, "lr_epochs and schedule set schedule"),
        ({"lr_func": [1.0], "warmup_epoch": 2}, "'factors' ... warmup_epoch is set"),
        ({"lr_func": [1.0, 0.1], "num_epoch": 3}, "2 epochs ... num_epoch is 3"),
        ({"lr_func": "step"}, "lr_func is 'step' ... list ... function"),
        ({"lr_func": lambda epoch: 0.1**epoch}, "num_epoch is 0"),
        ({"lr_func": lambda epoch: 1 / epoch, "num_epoch": 2}, "lr_func failed: ZeroDivisionError"),
        ({"lr_func": lambda epoch: None, "num_epoch": 2}, "lr_func failed: TypeError"),
        ({"lr_func": lambda epoch: 1 - epoch, "num_epoch": 3}, "lr_func contains -1.0"),
        ({"objective": "uniface", "objective_options": "weight=0"}, "weight is 0.0, but must be"),
        ({"objective": "mcld"}, "unknown objective 'mcld': did you mean 'mlcd'"),
        ({"labels_per_item": 2000}, "labels_per_item is 2000, but must be at least 0 and at most 1024"),
        ({"network": "resnet50"}, "unknown network 'resnet50': did you mean 'r50'? (known: ... , or timm:NAME for a"),
        ({"center_optimizer": "adam"}, "unknown center_optimizer 'adam': did you mean 'adamw'"),
        ({"dataset": "emore", "schedule": "steps"}, "add steps=[...]"),
        ({"schedule": "epochs", "lr_steps": []}, "add epochs=[...]"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
        *_options("schedule", "power=0", "power=1e300", schedule="polynomial"),
        ({"schedule": "cosine", "schedule_options": "power=2"}, "cannot be created with"),
        *_options("schedule", "final=2", schedule="cosine"),
        *_options("schedule", "final=0", "final=2", schedule="exponential"),
        *_options("margin", "m=-1", "m=nan", "h=0", "t_alpha=2", "t_alpha=0", "m=1e300", loss="adaface"),
        *_options("margin", "lambda_g=-5", "l_a=0", "u_a=1e300", "l_m=-0.1", "u_m=True", loss="magface"),
        *_options("margin", "m=-0.5", "m=4", loss="curricularface"),
        *_options("margin", "k=0", "penalty=4", "m=-1", loss="inter_topk"),
        *_options("optimizer", "momentum=1", "weight_decay=1e300", "eps=-1", optimizer="sgd"),
        *_options("optimizer", "betas=(0.9, 1)", "eps=-1", optimizer="adamw"),
        *_options("optimizer", "dampening=-1", "alpha=nan", optimizer="torch.optim:RMSprop"),
        ({"optimizer": "adamw", "center_optimizer": "adamw", "momentum": 0.5}, "momentum is 0.5"),
        ({"warmup": "quadratic", "warmup_steps": 5}, "set warmup_epoch"),
        *(({"optimizer": name, "optimizer_options": "params=5"}, "has params") for name in ("sgd", "own:Own")),
        *(({"optimizer": name}, f"'{name}'") for name in ("adam", "torch.optim:")),
        *(
            ({setting: "my-module:f"}, f"{setting} is")
            for setting in ("schedule", "center_optimizer", "network", "objective")
        ),
        *(({f"{part}_options": "0.4"}, "name=value, separated") for part in ("optimizer", "margin")),
        ({"loss": "own"}, "margin is ''"),
        ({"margin": "arcfase"}, "margin is 'arcfase'"),
        ({"loss": "cosface", "margin": "a:b"}, "loss cosface has 'combined': set loss=own"),
        ({"margin_options": "m=0.4"}, "'combined' takes m1, m2, m3, interclass_filtering_threshold"),
        ({"loss": "adaface", "margins": (1, 0, 0.4)}, "'adaface' takes m, h, t_alpha"),
        *(
            ({"margin_options": f"m2={text}"}, "m2 is [ ... one number per epoch")
            for text in (
                "[]",
                "[0,'a']",
                "[[1,0],2]",
                "[[2,0],[2,1]]",
                "[[2,0],[1,1]]",
                "[[0,1]]",
                "[[1.5,1]]",
                "[1e999]",
            )
        ),
        *(({"margin_options": f"m2={text}"}, "m2 is 11.0") for text in ("[0.1,11]", "[[1,0.1],[2,11]]")),
        ({"margin_options": "m=[0.1,0.2]"}, "'combined' takes m1"),
        ({"margin_options": "m2=[0.1,0.2],ramp=exponential"}, "no ramp"),
        ({"margin_options": "m2=[[1,0.1]],ramp=cubic"}, "unknown ramp 'cubic'"),
        ({"margin": "own:margin", "margin_options": "m=[0.1,[1]]"}, "one number per epoch"),
        ({"net_se": True}, "net_se is True ... only the mxnet trainer"),
        ({"network": "rx50"}, "only the mxnet trainer"),
    ],
)
def test_refused_settings_of_the_pytorch_trainer(changes, words):
    refused(changes, words, "torch")


@pytest.mark.parametrize(
    "changes",
    [
        {"task_options": "cutout=112"},
        {"momentum": 0.5, "optimizer": "adamw"},
        {"momentum": 0.5, "center_optimizer": "adamw"},
        {"dataset": "emore", "task": "items", "rec": "own:Items"},
        {"schedule": "factors", "schedule_options": "factors=[1.0,0.1,0.01]", "num_epoch": 3},
        {"optimizer_options": "lr=5.0", "layer_options": "lr=0.5"},
        {"margin": "own:margin", "margin_options": "ramp=exponential,m=[[1,-5],[9,5]],sizes=(1,2)"},
    ],
)
def test_settings_that_just_fit(changes):
    settings = default.generate_config(changes=changes, trainer="torch")
    assert {name: settings[name] for name in changes} == changes
