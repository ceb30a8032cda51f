"""The sets of arcface_torch's recipes with what the recipes of a set have in common.

All other keys have the DEFAULTS of partial_fc/training/recipes/translate.py.

``published`` holds what arcface_torch's README reports for a recipe, in percent: the true accept rate of the challenge
MFR-ALL at a false accept rate of 1e-6, and of IJB-C at 1e-4 and 1e-5; for our own recipes it holds the accuracies that
they have reached, each with its tolerance, those of the glyphs on one process. ``gpus`` is the number of processes that
the learning rate is meant for.
"""

from easydict import EasyDict as edict

ARCFACE, COSFACE = (1.0, 0.5, 0.0), (1.0, 0.0, 0.4)


def published(mfr_all, ijbc_1e4, ijbc_1e5):
    """The published results of a recipe, in percent."""
    return {"MFR-ALL": mfr_all, "IJB-C 1e-4": ijbc_1e4, "IJB-C 1e-5": ijbc_1e5}


def _set(rec, num_classes, num_image, **common):
    data = dict(rec=f"/train_tmp/{rec}", num_classes=num_classes, num_image=num_image)
    usual = dict(margin_list=COSFACE, fp16=True, num_epoch=20, warmup_epoch=0, gpus=8)
    usual["val_targets"] = ["lfw", "cfp_fp", "agedb_30"]

    def recipe(network, **own):
        return edict({**data, **usual, **common, "network": network, **own})

    return recipe


ms1mv2 = _set("faces_emore", 85742, 5822653, margin_list=ARCFACE)
ms1mv3 = _set("ms1m-retinaface-t1", 93431, 5179510, margin_list=ARCFACE)
glint360k = _set("glint360k", 360232, 17091657, weight_decay=1e-4)
webface4m = _set("WebFace4M", 205990, 4235242)
webface12m = _set("WebFace12M", 617970, 12720066, val_targets=[])
# 40 % of the images have the label of another person; persons whose images are divided among several classes.
webface12m_flip = _set("WebFace12M_FLIP40", 617970, 12720066, val_targets=[], warmup_epoch=2)
webface12m_conflict = _set("WebFace12M_Conflict", 1017970, 12720066, val_targets=[], warmup_epoch=2)
webface42m = _set("WebFace42M", 2059906, 42474557, lr=0.4, sample_rate=0.2, warmup_epoch=2)


def webface42m_vit(network, **own):
    """A vision transformer on WebFace42M: AdamW, 40 epochs, 30 % of the centers in a step."""
    transformer = dict(optimizer="adamw", lr=0.001, weight_decay=0.1, sample_rate=0.3, num_epoch=40, warmup_epoch=4)
    return webface42m(network, **{**transformer, "batch_size": 384, "gpus": 64, "val_targets": [], **own})


def glyphs(network, **own):
    """A small network on 500 characters, on a CPU, with the results in docs/recipes.md."""
    val_targets = ["unseen_characters", "unseen_typefaces"]
    data = dict(rec="glyphs500", num_classes=500, num_image=5000, val_targets=val_targets)
    usual = dict(margin_list=COSFACE, embedding_size=128, batch_size=16, gpus=2, warmup_epoch=1, verbose=10000)
    return edict({**data, **usual, "network": network, **own})
