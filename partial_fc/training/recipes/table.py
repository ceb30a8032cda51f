"""The recipes of arcface_torch by name, and four of our own that train on a CPU.

Keys that a recipe lacks have their value in DEFAULTS of translate.py. ``published`` holds the results in
arcface_torch's README, in percent: the true accept rate of the challenge MFR-ALL at a false accept rate of 1e-6, and of
IJB-C at 1e-4 and 1e-5. For our own recipes it holds accuracies that they have reached, with a tolerance; the glyphs
were trained in one process. ``gpus`` is the number of processes that the learning rate is meant for.
"""

from typing import Any

ARCFACE, COSFACE = (1.0, 0.5, 0.0), (1.0, 0.0, 0.4)


def published(mfr_all, ijbc_1e4, ijbc_1e5):
    """The published results of a recipe, in percent."""
    return {"MFR-ALL": mfr_all, "IJB-C 1e-4": ijbc_1e4, "IJB-C 1e-5": ijbc_1e5}


def _set(rec, num_classes, num_image, **common):
    data = dict(rec=f"/train_tmp/{rec}", num_classes=num_classes, num_image=num_image)
    usual = dict(margin_list=COSFACE, fp16=True, num_epoch=20, warmup_epoch=0, gpus=8)
    usual["val_targets"] = ["lfw", "cfp_fp", "agedb_30"]

    def recipe(network, **own):
        return {**data, **usual, **common, "network": network, **own}

    return recipe


ms1mv2 = _set("faces_emore", 85742, 5822653, margin_list=ARCFACE)
ms1mv3 = _set("ms1m-retinaface-t1", 93431, 5179510, margin_list=ARCFACE)
glint360k = _set("glint360k", 360232, 17091657, weight_decay=1e-4)
webface4m = _set("WebFace4M", 205990, 4235242)
webface12m = _set("WebFace12M", 617970, 12720066, val_targets=[])
# Noisy labels: 40 % of the images have the label of another person; one person has several classes.
webface12m_flip = _set("WebFace12M_FLIP40", 617970, 12720066, val_targets=[], warmup_epoch=2)
webface12m_conflict = _set("WebFace12M_Conflict", 1017970, 12720066, val_targets=[], warmup_epoch=2)
webface42m = _set("WebFace42M", 2059906, 42474557, lr=0.4, sample_rate=0.2, warmup_epoch=2)


def webface42m_vit(network, **own):
    """A vision transformer on WebFace42M: AdamW, 40 epochs, 30 % of the centers sampled per step."""
    transformer = dict(optimizer="adamw", lr=0.001, weight_decay=0.1, sample_rate=0.3, num_epoch=40, warmup_epoch=4)
    return webface42m(network, **{**transformer, "batch_size": 384, "gpus": 64, "val_targets": [], **own})


def glyphs(network, **own):
    """A small network on 500 characters, on a CPU, with the results in docs/recipes.md."""
    val_targets = ["unseen_characters", "unseen_typefaces"]
    data = dict(rec="glyphs500", num_classes=500, num_image=5000, val_targets=val_targets)
    usual = dict(margin_list=COSFACE, embedding_size=128, batch_size=16, gpus=2, warmup_epoch=1, verbose=10000)
    return {**data, **usual, "network": network, **own}


demo = dict(
    rec="demo",
    num_classes=1000,
    num_image=20000,
    val_targets=["demo_val"],
    margin_list=ARCFACE,
    network="small",
    embedding_size=128,
    batch_size=64,
    num_epoch=6,
    warmup_epoch=1,
    verbose=500,
    frequent=50,
    gpus=2,
    published={"demo_val": (97.3, 1.5)},
)  # synthetic faces, which the first training draws

RECIPES: dict[str, dict[str, Any]] = {
    "demo": demo,
    "glint360k_mbf": glint360k("mbf", published=published(70.18, 95.04, 92.62)),
    "glint360k_r100": glint360k("r100", published=published(89.52, 97.55, 96.38)),
    "glint360k_r50": glint360k("r50", published=published(86.34, 97.16, 95.81)),
    "glyphs_mbf_adamw": glyphs(
        "mbf",
        optimizer="adamw",
        lr=0.003,
        weight_decay=0.1,
        num_epoch=2,
        published={"unseen_characters": (92.2, 10.0), "unseen_typefaces": (88.5, 12.0)},
    ),
    "glyphs_small": glyphs(
        "small", lr=0.02, num_epoch=8, published={"unseen_characters": (94.2, 4.0), "unseen_typefaces": (90.2, 4.0)}
    ),
    "glyphs_vit": glyphs(
        "vit_mini",
        optimizer="adamw",
        lr=0.001,
        weight_decay=0.1,
        num_epoch=8,
        published={"unseen_characters": (90.0, 6.0), "unseen_typefaces": (88.2, 6.0)},
    ),
    "ms1mv2_mbf": ms1mv2("mbf", weight_decay=0.0001, num_epoch=40, published=published(62.07, 93.61, 90.28)),
    "ms1mv2_r100": ms1mv2("r100", published=published(78.12, 96.37, 94.27)),
    "ms1mv2_r50": ms1mv2("r50", weight_decay=0.0001, published=published(75.13, 95.97, 94.07)),
    "ms1mv3_mbf": ms1mv3("mbf", weight_decay=0.0001, num_epoch=40, published=published(63.78, 94.23, 91.33)),
    "ms1mv3_r100": ms1mv3("r100", published=published(81.97, 96.85, 95.02)),
    "ms1mv3_r50": ms1mv3("r50", published=published(79.14, 96.37, 94.47)),
    "ms1mv3_r50_onegpu": ms1mv3("r50", lr=0.02, gpus=1),
    "wf12m_conflict_r50": webface12m_conflict("r50", published=published(79.93, 95.3, 91.56)),
    "wf12m_conflict_r50_pfc03_filter04": webface12m_conflict(
        "r50", sample_rate=0.3, interclass_filtering_threshold=0.4, published=published(91.68, 97.28, 95.75)
    ),
    "wf12m_flip_pfc01_filter04_r50": webface12m_flip(
        "r50", sample_rate=0.1, interclass_filtering_threshold=0.4, published=published(80.2, 96.11, 93.79)
    ),
    "wf12m_flip_r50": webface12m_flip("r50", published=published(43.87, 88.35, 80.78)),
    "wf12m_mbf": webface12m("mbf", weight_decay=0.0001),
    "wf12m_pfc02_r100": webface12m("r100", sample_rate=0.2, published=published(94.75, 97.6, 95.9)),
    "wf12m_pfc03_r100": webface12m("r100", sample_rate=0.3, published=published(94.71, 97.64, 96.01)),
    "wf12m_r100": webface12m("r100", published=published(94.69, 97.59, 95.97)),
    "wf12m_r50": webface12m("r50"),
    "wf42m_pfc0008_32gpu_r100": webface42m(
        "r100", batch_size=512, sample_rate=0, gpus=32, published=published(93.08, 97.51, 95.88)
    ),
    "wf42m_pfc02_16gpus_mbf_bs8k": webface42m("mbf", batch_size=512, weight_decay=0.0001, gpus=16, val_targets=[]),
    "wf42m_pfc02_16gpus_r100": webface42m(
        "r100", batch_size=256, lr=0.3, warmup_epoch=1, gpus=16, published=published(96.69, 97.85, 96.63)
    ),
    "wf42m_pfc02_16gpus_r50_bs8k": webface42m(
        "r50", batch_size=512, lr=0.6, warmup_epoch=4, gpus=16, published=published(93.96, 97.46, 96.12)
    ),
    "wf42m_pfc02_32gpus_r50_bs4k": webface42m("r50", gpus=32, published=published(94.04, 97.48, 95.94)),
    "wf42m_pfc02_8gpus_r50_bs4k": webface42m("r50", batch_size=512, published=published(93.83, 97.53, 96.16)),
    "wf42m_pfc02_r100": webface42m("r100", lr=0.1, warmup_epoch=0, published=published(96.27, 97.7, 96.31)),
    "wf42m_pfc02_r100_16gpus": webface42m("r100", lr=0.2, gpus=16, published=published(96.28, 97.8, 96.57)),
    "wf42m_pfc02_r100_32gpus": webface42m("r100", gpus=32, published=published(96.57, 97.83, 96.5)),
    "wf42m_pfc03_32gpu_r100": webface42m("r100", sample_rate=0.3, gpus=32, published=published(96.69, 97.82, 96.45)),
    "wf42m_pfc03_32gpu_r18": webface42m("r18", sample_rate=0.3, gpus=32, published=published(79.13, 95.77, 93.36)),
    "wf42m_pfc03_32gpu_r200": webface42m("r200", sample_rate=0.3, gpus=32, published=published(97.7, 97.97, 96.93)),
    "wf42m_pfc03_32gpu_r50": webface42m("r50", sample_rate=0.3, gpus=32, published=published(94.03, 97.48, 95.94)),
    "wf42m_pfc03_40epoch_64gpu_vit_b": webface42m_vit("vit_b_dp005_mask_005", published=published(97.42, 97.9, 97.04)),
    "wf42m_pfc03_40epoch_64gpu_vit_l": webface42m_vit("vit_l_dp005_mask_005", published=published(97.85, 98.0, 97.23)),
    "wf42m_pfc03_40epoch_64gpu_vit_s": webface42m_vit("vit_s_dp005_mask_0", published=published(95.87, 97.73, 96.57)),
    "wf42m_pfc03_40epoch_64gpu_vit_t": webface42m_vit("vit_t_dp005_mask0", published=published(92.24, 97.31, 95.97)),
    "wf42m_pfc03_40epoch_8gpu_vit_b": webface42m_vit(
        "vit_b_dp005_mask_005", batch_size=256, gradient_acc=12, gpus=8, published=published(97.16, 97.91, 97.05)
    ),
    "wf42m_pfc03_40epoch_8gpu_vit_t": webface42m_vit("vit_t_dp005_mask0", batch_size=512, gpus=8),
    "wf4m_mbf": webface4m("mbf", weight_decay=0.0001),
    "wf4m_r100": webface4m("r100", published=published(89.87, 97.19, 95.48)),
    "wf4m_r50": webface4m("r50"),
}
