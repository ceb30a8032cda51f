"""What makes ArcFace collapse on the demo, and what does not: the table of docs/collapse.md.

    python benchmarks/collapse.py

One rank of one thread trains the first 500 updates with a recipe that collapses, and then with one thing changed at a
time. A minute each; runs whose summaries are in models/benchmark-collapse are taken from there.
"""

from __future__ import annotations

from demo import ROOT, figures, train

FOLDER = ROOT / "models" / "benchmark-collapse"
# The demo's recipe before this was measured: 0.05 for both rates.
BEFORE = {"lr": 0.4, "warmup_steps": 100, "max_grad_norm": 0, "max_update": 500, "checkpoint_every": 0}

CHANGES: dict[str, dict[str, object]] = {
    "nothing": {},
    "another seed": {"seed": 3},
    "no angular margin": {"margins": "(1.0,0.0,0.0)"},
    "CosFace's margin": {"margins": "(1.0,0.0,0.4)"},
    "slower running statistics": {"bn_mom": 0.97},
    "no weight decay": {"wd": 0.0},
    "batch size doubled, same learning rate": {"batch_size": 128, "lr": 0.2},
    "embedding size 512": {"embedding_size": 512},
    "PReLU": {"net_act": "prelu"},
    "global average pooling": {"net_output": "GAP"},
    "scale 32": {"loss_s": 32},
    "learning rate halved": {"lr": 0.2},
    "learning rate quartered": {"lr": 0.1},
    "longer warm-up": {"warmup_steps": 400},
    "clipping": {"max_grad_norm": 5},
    "clipping, longer warm-up": {"max_grad_norm": 5, "warmup_steps": 400},
    "learning rate halved, clipping, longer warm-up": {"lr": 0.2, "max_grad_norm": 5, "warmup_steps": 400},
}


def main() -> None:
    print("| changed | settings | accuracy | dimensions | mode agreement |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name, change in CHANGES.items():
        arguments = [f"{key}={value}" for key, value in {**BEFORE, **change}.items()]
        summary = train("run.sh", FOLDER, 1, 1, arguments)
        settings = " ".join(f"`{key}={value}`" for key, value in change.items())
        print(f"| {name} | {settings} |", figures(summary), "|", flush=True)


if __name__ == "__main__":
    main()
