"""Presets: the settings that the name of a loss, network or data set stands for.

A program may add presets to these dictionaries before it calls resolve_settings.
"""

from easydict import EasyDict as edict

from partial_fc.layer.margins import MARGINS
from partial_fc.utils.imports import declared_keys, trainer_root

# The presets of losses; `network` and `dataset` below are those of networks and data sets, as in the original's
# default.py. The MXNet trainer has only the losses whose margin is "combined".
loss = edict(
    arcface=edict(margin="combined", margin_options=""),
    cosface=edict(margin="combined", margin_options="m1=1.0,m2=0.0,m3=0.4"),
    **{name: edict(margin=name, margin_options="") for name in MARGINS[1:]},
    # Used if the user names a margin and no loss.
    own=edict(margin="", margin_options=""),
)

# By trainer. MXNet's mbf is mobilefacenet in PyTorch, where mbf is arcface_torch's MobileFaceNet.
NETWORKS = {
    "mxnet": ("r18", "r34", "r50", "r100", "r124", "r200", "rx50", "rx101", "mbf", "small"),
    "torch": declared_keys(trainer_root("partial_fc_torch") / "partial_fc_torch" / "backbones", "NETWORKS"),
}
network = edict({name: edict() for names in NETWORKS.values() for name in names})
VALIDATION_SETS = ["lfw", "cfp_fp", "cfp_ff", "agedb_30", "calfw", "cplfw", "vgg2_fp"]


def _real(name, classes, val_targets=("lfw", "cfp_fp", "agedb_30"), **more):
    return edict(data_name=name, num_classes=classes, val_targets=list(val_targets), **more)


def _divided(unit, *numbers):
    """Settings of rates that are divided by 10 after these steps, or before these epochs."""
    return {"schedule": unit, "schedule_options": f"{unit}=[{','.join(map(str, numbers))}]"}


def _synthetic(ten_thousands):
    """A preset of n x 10^4 identities on dummy images, to measure speed and memory."""
    return edict(
        num_classes=ten_thousands * 10000,
        **_divided("steps", 20000, 28000),
        max_update=32000,
        checkpoint_every=0,  # a checkpoint has 4 GB per million classes
        debug=True,
    )


dataset = edict(
    # Synthetic faces, drawn by the first training on them (partial_fc/data/synthetic).
    demo=edict(
        data_root="data",
        data_name="demo",
        num_classes=1000,
        embedding_size=128,
        # 0.05 for 64 images. A long warm-up avoids the collapse into a cone that docs/collapse.md describes.
        lr=0.4,
        warmup_steps=400,
        max_grad_norm=5.0,
        **_divided("steps", 1600, 1900),
        max_update=2000,
        verify_every=500,
        save_every=2000,
        checkpoint_every=500,
        val_targets=["demo_val"],
        baselines=True,
    ),
    own=edict(num_epoch=20, schedule="cosine"),  # used if the user names the images and no dataset
    # Characters in the typefaces of Debian's packages, written by `python -m examples.glyphs`; see docs/experiment.md.
    glyphs=edict(
        data_root="data",
        data_name="glyphs",
        num_classes=20000,
        image_size=64,
        rand_mirror=False,
        embedding_size=128,
        warmup_steps=1000,
        max_grad_norm=5.0,
        **_divided("epochs", 4),
        num_epoch=4,
        val_targets=["unseen_characters", "unseen_typefaces"],
    ),
    # insightface's train.rec has 10,572 of CASIA-WebFace's 10,575 identities.
    webface=_real("webface", 10572, **_divided("steps", 20000, 28000), max_update=32000),
    emore=_real("emore", 85742, **_divided("steps", 100000, 160000), max_update=180000),
    # The original has no schedule for ms1mv3; this is the schedule of emore, which has nearly the same size.
    ms1mv3=_real("ms1mv3", 93431, **_divided("steps", 100000, 160000), max_update=180000),
    glint360k=_real("glint360k", 360232, **_divided("epochs", 8, 12, 15, 18), num_epoch=20),
    glint360k_8GPU=_real(
        "glint360k", 360232, VALIDATION_SETS, **_divided("steps", 200000, 400000, 500000, 550000), max_update=600000
    ),
    # 0.05 for a batch of 512 is the original's 0.1 for its global batch of 1024.
    glint360k_16GPU=_real(
        "glint360k", 360232, VALIDATION_SETS, **_divided("steps", 200000, 280000, 360000), max_update=400000, lr=0.05
    ),
)
# 500 characters of glyphs, for the glyphs' recipes; see docs/recipes.md.
dataset.glyphs500 = edict({**dataset.glyphs, "data_name": "glyphs500", "num_classes": 500})
for _name, _classes in (("ms1m-retinaface-t1", 93431), ("ms1m-retinaface-t2", 91180)):
    dataset[_name] = _real(_name, _classes, **_divided("epochs", 11, 17, 22), num_epoch=25)
for _count in (100, 1000, 2000, 3000, 10000):
    dataset[f"{_count}w"] = _synthetic(_count)

PRESETS = {"dataset": dataset, "network": network, "loss": loss}

# The presets above follow the original MXNet trainer. The PyTorch trainer follows arcface_torch (insightface, commit
# fb5b42fe), which has other defaults, folders and schedules. The classes are the same, so that each trainer can resume
# from the other's checkpoints.
TRAINERS = {
    "mxnet": edict(defaults=edict(), dataset=edict()),
    "torch": edict(
        defaults=edict(log_every=50, max_grad_norm=5.0),
        dataset=edict(
            emore=edict(data_name="faces_emore", val_targets=["lfw"], **_divided("epochs", 8, 14), num_epoch=16),
            ms1mv3=edict(data_name="ms1m-retinaface-t1", **_divided("epochs", 11, 17, 22), num_epoch=25),
            webface=edict(
                data_name="faces_webface_112x112",
                **_divided("epochs", 20, 28, 32),
                num_epoch=34,
                network_options="dropout=0.4",
            ),
        ),
    ),
}
