"""The states that the centers' optimizers keep for each class, in memory, files, checkpoints and plans.

Shapes: E embedding.
"""

from collections.abc import Mapping

from partial_fc.utils.options import CENTER_DTYPES

# Optimizer -> state -> whether the state is a row of E numbers per class, rather than a single number.
CENTER_STATES = {
    "sgd": {"weight_mom": True},
    "adamw": {"weight_exp_avg": True, "weight_exp_avg_sq": True, "weight_updates": False},
    "adagrad": {"weight_sum": False},
}


def center_widths(embedding_size: int, states: Mapping[str, bool]) -> dict[str, int]:
    """Returns how many numbers a class has in each field: "weight", the centers, and the optimizer's states."""
    return {"weight": embedding_size} | {name: embedding_size if is_row else 1 for name, is_row in states.items()}


def center_bytes(embedding_size: int, states: Mapping[str, bool], dtype: str = "float32") -> dict[str, int]:
    """Returns how many bytes a class has in each field; states of a single number are always float32."""
    row = embedding_size * CENTER_DTYPES[dtype]
    return {"weight": row} | {name: row if is_row else CENTER_DTYPES["float32"] for name, is_row in states.items()}
