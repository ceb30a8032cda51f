"""The origin of embeddings, stored beside them, so that embeddings of different models are not compared."""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from partial_fc.utils.regular_files import open_regular


class Origin(NamedTuple):
    """The model and the option that computed embeddings."""

    model: str | None  # SHA-256 of the model's ONNX files; None for a model converted from other files
    mirrored: bool  # whether the embeddings of mirror images were added

    @classmethod
    def read(cls, content: Any) -> "Origin":
        """Returns the origin in a JSON value. Raises ValueError if it is invalid."""
        try:
            origin = cls(**content)
        except TypeError:  # other keys, or no JSON object
            origin = cls("", False)
        is_sha256 = isinstance(origin.model, str) and len(origin.model) == 64
        if not (origin.model is None or is_sha256) or type(origin.mirrored) is not bool:
            raise ValueError("the origin of the embeddings is invalid")
        return origin

    def check(self, source: str, other: "Origin", other_source: str) -> None:
        """Raises ValueError if the embeddings of ``source`` cannot be compared with embeddings of ``other`` origin.

        ``other_source`` names the latter in the message. Two models can be compared only if both are ONNX files.
        """
        if self.model and other.model and self.model != other.model:
            raise ValueError(
                f"{other_source} was made with another model file than {source} (SHA-256 {other.model[:12]}, "
                f"{self.model[:12]}): use the same one"
            )
        if self.mirrored != other.mirrored:
            ways = {True: "with", False: "without"}
            raise ValueError(
                f"{other_source} was made {ways[other.mirrored]} mirror images, {source} {ways[self.mirrored]}: use "
                "--no-flip with both or with none"
            )


def files_digest(paths: Iterable[str]) -> str:
    """Returns the SHA-256 of the concatenated files in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()
