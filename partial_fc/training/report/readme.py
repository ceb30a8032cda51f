"""README.md beside a model: what model hubs show, after metadata in YAML that they read."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from partial_fc.evaluation.verification import VerificationPoint, accuracy_margin
from partial_fc.training.results import SetResult, TrainingResult
from partial_fc.utils.imports import code_in
from partial_fc.utils.tables import markdown_table

LICENCE = re.compile(r"[a-z0-9][a-z0-9.\-]*")  # an identifier of a model hub, such as apache-2.0
LOAD = """## Load it

```python
import partial_fc

model = partial_fc.from_pretrained("FOLDER"{trust})  # this folder, or a copy of it
```
{module}
`config.json` has the architecture, the sizes and the preprocessing. `partial-fc embed`, `compare` and `search` run
`backbone.onnx` without PyTorch.
"""
README = """# {name}

Embeddings of {embedding_size} numbers, compared by their cosine, trained with Partial FC on {num_classes:,} classes in
{updates:,} updates: `network={network}`, `loss={loss}`.

{load}
## Figures of the training's verifications

{figures}

± is half of a 95 % interval over ten folds of pairs. The figures are optimistic if they were used to choose the model.
The data, their licence, the licence of the model and its use are not given:
`partial-fc export FOLDER --hf --data ... --data-license ... --license ... --use ...` writes a complete card for a model
hub.
"""


def hub_metadata(settings: Mapping[str, Any], license: str | None = None) -> str:
    """Returns the lines of YAML of a training; ``license`` is an identifier such as apache-2.0, or any other text."""
    lines = ["library_name: partial_fc", "tags: [partial-fc, metric-learning]"]
    if settings.get("task") == "faces":
        lines.append("pipeline_tag: image-feature-extraction")
    if license and LICENCE.fullmatch(license):
        lines.append(f"license: {license}")
    elif license:
        lines += ["license: other", f"license_name: {json.dumps(license)}"]
    return "\n".join(["---", *lines, "---", "", ""])


def how_to_load(settings: Mapping[str, Any]) -> str:
    """Returns the section about loading the model; a network of the user's own is imported when it is loaded."""
    own = [name.partition(":")[0] for setting, name in code_in(settings) if setting == "network"]
    module = f"\nThis imports `{own[0]}`: run it where Python finds this module.\n" if own else ""
    return LOAD.format(trust=", trust_code=True" if own else "", module=module)


def readme(result: TrainingResult) -> str:
    """Returns the README.md of a training's output folder."""
    rows = [
        (f"`{name}`", each.evaluation.figures[0], f"{each.value:.5f}{_margin(each)}", f"{each.best_value:.5f}")
        for name, each in result.sets.items()
    ]
    figures = "\n".join(markdown_table(("set", "figure", "last", "best"), rows)) if rows else "Nothing was verified."
    facts = {**result.settings, "name": os.path.basename(result.folder), "updates": result.updates}
    return hub_metadata(result.settings) + README.format(**facts, load=how_to_load(result.settings), figures=figures)


def _margin(of_set: SetResult) -> str:
    point = of_set.points[-1]
    return f" ± {accuracy_margin(point.std):.5f}" if isinstance(point, VerificationPoint) else ""
