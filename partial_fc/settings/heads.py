"""Several heads on one backbone: reads the file that the setting ``heads`` names."""

import re
from typing import Any

from partial_fc.distributed.errors import errors_of_head
from partial_fc.utils.config import Setting, SettingsError, choose
from partial_fc.utils.json_object import read_document
from partial_fc.utils.text import quoted

LARGEST = 1 << 20  # maximum bytes of the file
MOST = 64  # maximum number of heads
NAME, WEIGHT = "name", Setting("weight", 1.0, "", above=0, at_most=10**4)
# Settings that a head may have for itself; a head has the training's value of the others.
OF_HEAD = (
    *("rec", "labels", "labels_per_item", "num_classes", "batch_size", "task_options"),
    *("loss", "loss_s", "margin", "margin_options", "objective", "objective_options"),
    *("sample_ratio", "sampling", "sampling_correction", "layer_options"),
)


def read_heads(path: str) -> list[dict[str, Any]]:
    """Reads a list of heads: ``[[heads]]`` in TOML, or JSON or YAML, ``{"heads": [{...}, ...]}`` or the list alone.

    Raises:
        SettingsError: The file cannot be read, or a head has no valid name, an unknown key or a wrong weight; names
            the file, the head and the key.
    """
    try:
        content = read_document(path, LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"cannot read the heads in {path}: {reason}") from None
    heads = content.get("heads") if isinstance(content, dict) and len(content) == 1 else content
    if not isinstance(heads, list) or not all(isinstance(head, dict) for head in heads):
        raise SettingsError(f"{path} has no list of heads: write [[heads]] before each in TOML, or a list in JSON")
    if not 1 <= len(heads) <= MOST:
        raise SettingsError(f"{path} has {len(heads)} heads, but must have 1 to {MOST}")
    names = [head.get(NAME) for head in heads]
    for number, (head, name) in enumerate(zip(heads, names), start=1):
        # The name is a part of file names, and of the names of metrics.
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w{0,39}", name, re.ASCII):
            raise SettingsError(
                f"{path}: head {number}: name is {quoted(name)}, but must be a letter, then up to 39 letters, digits, _"
            )
        if name in names[: number - 1]:
            raise SettingsError(f"{path}: head {name}: name is the name of an earlier head, too")
        with errors_of_head(name, path):
            for key in head:
                choose("key", key, (NAME, WEIGHT.name, *OF_HEAD))
            head[WEIGHT.name] = WEIGHT.check(head.get(WEIGHT.name, WEIGHT.default))
    return heads
