"""WebDataset shards: .tar files of samples, read in any order by an index of them.

A sample is a sequence of files of one name up to the first dot of the base name: 0001.jpg (or another image) and
0001.cls, the class label in decimal digits; others are ignored. Positions follow the sorted shards and the order in
them. The index of a shard is written beside it once (shard.tar.index, layout in stamped_words.py: K, a checksum, and
offset, size and label of each image); it can be deleted.

Shapes: N images, K images of a shard.
"""

import glob
import os
import re
import tarfile
import weakref
from typing import NamedTuple

import numpy as np

from partial_fc.data.folder import IMAGE_ENDINGS
from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns
from partial_fc.data.stamped_words import file_stamp, read_words, write_words

SAMPLE = re.compile(r"((?:.*/)?[^./]+)(\.[^/]+)", re.DOTALL)  # name and ending, as webdataset divides them
HELD_OUT = re.compile(r"(?:test|val|validation|dev)(?![a-z])")  # as of the files that the Hugging Face Hub has
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
FORMAT = 0x58444954_43465001
ENDING = ".index"
HEADER_WORDS = 2
HELD_OPEN = 256  # shards; further ones are opened for each image, because the files of a process are limited
BLOCK = tarfile.BLOCKSIZE


class ShardImages(ImageSet):
    """The images of some shards. Thread-safe and fork-safe. See ImageSet.

    Args:
        pattern: see expand_shards; or a folder of .tar files.

    Raises:
        OSError, ValueError: a shard cannot be read, or a sample has no image or no label; names both.
    """

    advice = "write the shard again"

    def __init__(self, pattern: str):
        self.shards = expand_shards(pattern, ".tar")
        parts = [open_shard(shard) for shard in self.shards]
        self._ends = np.cumsum([len(part) for part in parts])
        self._offsets, self._sizes, labels = np.concatenate(parts).T
        self._descriptors = [os.open(shard, os.O_RDONLY) for shard in self.shards[:HELD_OPEN]]
        self._close = weakref.finalize(self, close_all, self._descriptors)
        super().__init__(pattern, LabelRuns.of_labels(np.ascontiguousarray(labels)), int(labels.max()) + 1)

    def read(self, position: int, label: int) -> bytes:
        """See ImageSet."""
        shard = int(np.searchsorted(self._ends, position, side="right"))
        size, offset = int(self._sizes[position]), int(self._offsets[position])
        try:
            if shard < len(self._descriptors):
                data = os.pread(self._descriptors[shard], size, offset)
            else:
                with open(self.shards[shard], "rb", buffering=0) as file:
                    data = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise OSError(f"{self.describe(position)} cannot be read ({error.strerror}): check the disk") from None
        if len(data) < size:
            raise ValueError(f"{self.describe(position)} is truncated: {self.advice}")
        return data

    def describe(self, position: int) -> str:
        """Names shard, file and offset of an image."""
        shard = self.shards[int(np.searchsorted(self._ends, position, side="right"))]
        offset = int(self._offsets[position])
        with open(shard, "rb") as file:
            name = os.pread(file.fileno(), 100, offset - BLOCK).rstrip(b"\0").decode(errors="replace")
        return f"{shard}: {name} at offset {offset}"

    def close(self) -> None:
        """See ImageSet."""
        self._close()


def close_all(descriptors: list[int]) -> None:
    """Closes the files, and forgets their numbers, which may be reused for others."""
    while descriptors:
        os.close(descriptors.pop())


def expand_shards(pattern: str, ending: str) -> list[str]:
    """Returns the files of a pattern with "{000..099}" and the shell's wildcards, sorted; or those of a folder.

    Raises:
        FileNotFoundError: there is none, or one of a range is missing.
        ValueError: a folder has files of another split, too, by their names.
    """
    if os.path.isdir(pattern):
        files = expand_shards(os.path.join(glob.escape(pattern), f"*{ending}"), ending)
        held_out = [file for file in files if HELD_OUT.match(os.path.basename(file))]
        if held_out:
            raise ValueError(
                f"{held_out[0]} is not for training by its name: name the files to train on, such as "
                f"{os.path.join(pattern, f'train-*{ending}')}"
            )
        return files
    span = RANGE.search(pattern)
    if span is None:
        found = sorted(glob.glob(pattern)) or [pattern] * os.path.exists(pattern)
        if not found:
            raise FileNotFoundError(f"{pattern} does not exist: expected {ending} files, or a folder of them")
        return found
    numbers = range(int(span[1]), int(span[2]) + 1)
    texts = (f"{number:0{len(span[1])}}" for number in numbers)
    return [
        file for text in texts for file in expand_shards(pattern[: span.start()] + text + pattern[span.end() :], ending)
    ]


def open_shard(path: str) -> np.ndarray:
    """Returns (K, 3) int64, offset, size and label of each image: from the index file, or from the shard."""
    stamp = file_stamp(path, FORMAT)
    words = read_words(path + ENDING, stamp)
    if words is not None and len(words) > HEADER_WORDS and len(words) == HEADER_WORDS + 3 * words[0]:
        if words[HEADER_WORDS:].sum() == words[1]:
            return np.array(words[HEADER_WORDS:]).reshape(-1, 3)  # the map would hold a descriptor for each shard
    images = index_shard(path)
    write_words(path + ENDING, stamp, np.array([len(images), images.sum()]), images)
    return images


class Sample(NamedTuple):
    """Offset and size of a sample's image, and its label; None for what has not been found."""

    image: tuple[int, int] | None = None
    label: int | None = None


def index_shard(path: str) -> np.ndarray:
    """Returns (K, 3) int64, offset, size and label of each image, from the headers of a .tar.

    Raises:
        OSError, ValueError: see ShardImages.
    """
    samples: dict[str, Sample] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                parts = SAMPLE.fullmatch(member.name)
                if member.isreg() and parts:
                    samples[parts[1]] = add_member(samples.get(parts[1], Sample()), tar, member, parts[2].lower())
            check_end(path, tar.offset)
    except tarfile.TarError as error:
        raise ValueError(f"{path} is no .tar file, or is damaged ({error}): copy or write it again") from None
    for name, sample in samples.items():
        if None in sample:
            missing = "image" if sample.image is None else ".cls, the class label in decimal digits"
            raise ValueError(f"{path}: sample {name} has no {missing}: write the shard again")
    if not samples:
        raise ValueError(f"{path} contains no samples, expected NAME.jpg and NAME.cls: remove it")
    return np.array([(*sample.image, sample.label) for sample in samples.values() if sample.image], np.int64)


def add_member(sample: Sample, tar: tarfile.TarFile, member: tarfile.TarInfo, ending: str) -> Sample:
    """Returns the sample with what a file adds to it."""
    if ending in IMAGE_ENDINGS and sample.image is None:
        return sample._replace(image=(member.offset_data, member.size))
    if ending != ".cls":
        return sample
    file = tar.extractfile(member)
    text = b"" if file is None else file.read(32).strip()
    if not text.isdigit() or len(text) > 18 or sample.label is not None:
        what = f"is {text!r}, expected a class label" if sample.label is None else "is repeated"
        raise ValueError(f"{tar.name!s}: {member.name} {what}: write the shard again")
    return sample._replace(label=int(text))


def check_end(path: str, offset: int) -> None:
    """Raises ValueError if the archive does not end with zeros at `offset`, where tarfile has stopped."""
    with open(path, "rb") as file:
        file.seek(offset)
        if file.read(BLOCK) != bytes(BLOCK):
            raise ValueError(f"{path} is damaged or truncated at offset {offset}: copy or write it again")
