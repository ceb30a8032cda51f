"""What embeddings were computed with, stored beside them, so that those of different models are not compared."""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from partial_fc.utils.regular_files import open_regular


class Origin(NamedTuple):
    """SHA-256 of the model's ONNX files, None for other files, which are converted; whether with mirror images."""

    model: str | None
    mirrored: bool

    @classmethod
    def read(cls, content: Any) -> "Origin":
        """Returns the origin that JSON holds; ValueError if it holds none."""
        try:
            origin = cls(**content)
        except TypeError:
            origin = cls("", False)
        if origin.model is not None and not _is_sha256(origin.model) or type(origin.mirrored) is not bool:
            raise ValueError("the origin of the embeddings is invalid")
        return origin

    def check(self, what: str, other: "Origin", where: str) -> None:
        """Raises ValueError if embeddings of ``what`` cannot be compared with those of ``where``, which is ``other``.

        Of models that are not both ONNX files nothing is known.
        """
        if self.model and other.model and self.model != other.model:
            raise ValueError(
                f"{where} was made with another model file than {what} (SHA-256 {other.model[:12]}, "
                f"{self.model[:12]}): use the same one"
            )
        if self.mirrored != other.mirrored:
            ways = {True: "with", False: "without"}
            raise ValueError(
                f"{where} was made {ways[other.mirrored]} mirror images, {what} {ways[self.mirrored]}: use --no-flip "
                "with both or with none"
            )


def files_digest(paths: Iterable[str]) -> str:
    """Returns the SHA-256 of files, one after another, in hexadecimal; raises OSError."""
    digest = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()


def _is_sha256(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64
