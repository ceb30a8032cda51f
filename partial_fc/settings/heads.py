"""Several heads on one backbone: reads the file that the setting ``heads`` names."""

import re
import sys
from typing import Any

from partial_fc.distributed.errors import errors_of_head
from partial_fc.utils.config import Setting, SettingsError, choose
from partial_fc.utils.json_object import read_object
from partial_fc.utils.regular_files import read_regular
from partial_fc.utils.text import quoted

LARGEST = 1 << 20  # maximum bytes of the file
MOST = 64  # maximum number of heads
NAME, WEIGHT = "name", Setting("weight", 1.0, "", above=0, at_most=10**4)
# Settings that a head may have for itself; a head has the training's value of the others.
OF_HEAD = (
    *("rec", "labels", "labels_per_item", "num_classes", "batch_size", "task_options"),
    *("loss", "loss_s", "margin", "margin_options", "objective", "objective_options"),
    *("sample_ratio", "sampling_correction", "layer_options"),
)


def read_heads(path: str) -> list[dict[str, Any]]:
    """Reads a list of heads: ``[[heads]]`` in TOML, or JSON, ``{"heads": [{...}, ...]}`` or the list alone.

    Raises:
        SettingsError: The file cannot be read, or a head has no valid name, an unknown key or a wrong weight; names
            the file, the head and the key.
    """
    is_toml = path.endswith(".toml")
    try:
        if not is_toml:
            content = read_object(path, LARGEST, (dict, list))
        elif sys.version_info >= (3, 11):
            import tomllib

            content = tomllib.loads(read_regular(path, LARGEST).decode())
        else:
            raise ValueError("Python 3.10 reads no TOML: write the heads as JSON")
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"cannot read {path} as {'TOML' if is_toml else 'JSON'}: {reason}") from None
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
