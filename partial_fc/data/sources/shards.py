"""WebDataset shards: .tar files of samples, which an index makes readable in any order.

The files of a sample have the same name up to the first dot of the base name: 0001.jpg (or another image) and 0001.cls,
the class label in decimal digits, or several labels with white space between them; others are ignored. Images are
numbered in the order of the sorted shards. The index of a shard is written next to it once (shard.tar.index, layout in
stamped_words.py: K, a checksum, and offset, size and labels of each image); it can be deleted.

Shapes: N images, K images of a shard, P labels of an image.
"""

import glob
import os
import re
import tarfile
import weakref
from typing import Any, BinaryIO

import numpy as np

from partial_fc.data.folder import IMAGE_ENDINGS
from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import MAX_LABELS, NO_LABEL, LabelRuns, label_array
from partial_fc.data.stamped_words import file_stamp, read_words, write_words
from partial_fc.utils.regular_files import require_links_inside, require_regular

from .forms import ending_of
from .tar_headers import BoundedMember

SAMPLE = re.compile(r"((?:.*/)?[^./]+)(\.[^/]+)", re.DOTALL)  # name and ending, split as webdataset does
# Names of held-out splits in file names, as `datasets` recognizes them.
HELD_OUT = re.compile(r"(?<![a-z])(?:test|testing|eval|evaluation|validation|valid|dev|val)(?![a-z])")
COMPRESSED = (b"\x1f\x8b", b"\x1f\x9d", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")  # gzip .. lz4
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
FORMAT = 0x58444954_43465002
ENDING = ".index"
HEADER_WORDS = 2
LONGEST_LABELS = 1 << 14  # bytes of a .cls
HELD_OPEN = 256  # shards kept open, as a process may open few files; other shards are opened for each image
BLOCK = tarfile.BLOCKSIZE
ZEROS = 1 << 20  # bytes of padding read at once; a sparse file can have any amount of padding


class ShardImages(ImageSet):
    """The images of shards. Thread-safe and fork-safe. See ImageSet.

    Args:
        pattern: of the shards, or their folder; see expand_shards.

    Raises:
        OSError, ValueError: a shard cannot be read, or a sample has no image or no label; the message names both.
    """

    advice = "write the shard again"

    def __init__(self, pattern: str):
        self.shards = expand_shards(pattern, ".tar")
        for shard in self.shards:
            require_regular(shard)
        parts = [open_shard(shard) for shard in self.shards]
        self._ends = np.cumsum([len(part) for part in parts])
        self._offsets, self._sizes = np.concatenate([part[:, :2] for part in parts]).T
        width = max(part.shape[1] for part in parts) - 2
        labels = np.full((len(self._sizes), width), NO_LABEL)
        for part, end in zip(parts, self._ends):
            labels[end - len(part) : end, : part.shape[1] - 2] = part[:, 2:]
        labels = labels if width > 1 else labels[:, 0]
        self._descriptors = [os.open(shard, os.O_RDONLY) for shard in self.shards[:HELD_OPEN]]
        self._close = weakref.finalize(self, close_all, self._descriptors)
        super().__init__(pattern, LabelRuns.of_labels(labels), int(labels.max()) + 1)

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
        """See ImageSet."""
        shard = self.shards[int(np.searchsorted(self._ends, position, side="right"))]
        offset = int(self._offsets[position])
        with open(shard, "rb") as file:
            name = os.pread(file.fileno(), 100, max(0, offset - BLOCK)).rstrip(b"\0").decode(errors="replace")
        return f"{shard}: {name} at offset {offset}"

    def close(self) -> None:
        """See ImageSet."""
        self._close()


def close_all(descriptors: list[int]) -> None:
    """Closes the files and removes their descriptors, which can be reused for other files."""
    while descriptors:
        os.close(descriptors.pop())


def expand_shards(pattern: str, ending: str) -> list[str]:
    """Returns the sorted files in a folder, or those that match a pattern with "{000..099}" and the shell's wildcards.

    Raises:
        FileNotFoundError: there is no file, or a file of a range is missing.
        ValueError: a folder has files of a held-out split, by their names, or a range is empty.
    """
    if os.path.isdir(pattern):
        names = sorted(name for name in os.listdir(pattern) if ending_of(name) == ending and name[0] != ".")
        held_out = [name for name in names if HELD_OUT.search(name.lower())]
        if held_out:
            train = os.path.join(pattern, f"train-*{ending}")
            raise ValueError(
                f"{os.path.join(pattern, held_out[0])} is named like a held-out split: name the files to train on, "
                f"such as {train}"
            )
        files = [os.path.join(pattern, name) for name in names]
        require_links_inside([file for file in files if os.path.islink(file)], pattern)
        return files
    span = RANGE.search(pattern)
    if span is None:
        files = sorted(glob.glob(pattern)) or [pattern] * os.path.exists(pattern)
        if not files:
            raise FileNotFoundError(f"{pattern} does not exist: expected {ending} files, or a folder of them")
        return files
    numbers = range(int(span[1]), int(span[2]) + 1)
    if not numbers:
        raise ValueError(f"{pattern} names no files: its range begins with {span[1]}, above its end, {span[2]}")
    texts = (f"{number:0{len(span[1])}}" for number in numbers)
    return [
        file for text in texts for file in expand_shards(pattern[: span.start()] + text + pattern[span.end() :], ending)
    ]


def open_shard(path: str) -> np.ndarray:
    """Returns offset, size and labels of each image, (K, 2 + P) int64, from the index file or from the shard."""
    stamp = file_stamp(path, FORMAT)
    words = read_words(path + ENDING, stamp)
    if words is not None and len(words) > HEADER_WORDS and words[0] > 0:
        width, rest = divmod(len(words) - HEADER_WORDS, int(words[0]))
        if 2 < width <= 2 + MAX_LABELS and not rest:
            images = np.array(words[HEADER_WORDS:]).reshape(-1, width)  # a copy: each memory map keeps a file open
            if images.sum() == words[1] and lie_inside(path, images):
                return images
    images = index_shard(path)
    write_words(path + ENDING, stamp, np.array([len(images), images.sum()]), images)
    return images


def index_shard(path: str) -> np.ndarray:
    """Returns what open_shard does, from the headers of one or more joined .tar files.

    Raises:
        OSError, ValueError: see ShardImages.
    """
    images: list[tuple[int, int]] = []
    labels: list[list[int]] = []
    start: int | None = 0
    try:
        with open(path, "rb") as file:
            while start is not None:
                file.seek(start)
                with tarfile.open(fileobj=file, mode="r:", tarinfo=BoundedMember) as tar:
                    samples = samples_of(path, tar)
                    if start and tar.offset == start:
                        raise ValueError(
                            f"{path} ends at offset {start}, but is followed by data that is not an archive"
                        )
                    start = next_archive(path, file, tar.offset)
                    for name, sample in samples.items():
                        for kind, what in (("image", "image"), ("label", ".cls, the class label in decimal digits")):
                            if kind not in sample:
                                raise ValueError(f"{path}: sample {name} has no {what}: {ShardImages.advice}")
                        images.append(sample["image"])
                        labels.append(sample["label"])
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    # Chains of headers and impossible sizes raise other errors than TarError.
    except (tarfile.TarError, RecursionError, MemoryError, OverflowError) as error:
        with open(path, "rb") as file:
            if file.read(6).startswith(COMPRESSED):
                raise ValueError(f"{path} is compressed, so it cannot be read in any order: decompress it") from None
        raise ValueError(f"{path} is no .tar file, or is damaged ({error}): copy or write it again") from None
    if not images:
        raise ValueError(f"{path} contains no samples, expected NAME.jpg and NAME.cls: remove it")
    table = np.column_stack([np.array(images, np.int64), label_array(labels)])
    if not lie_inside(path, table):
        raise ValueError(f"{path} is damaged or truncated: an image ends after the file: copy or write it again")
    return table


def lie_inside(path: str, images: np.ndarray) -> bool:
    """Whether all images, see open_shard, are inside the file. Headers and indexes can contain any numbers."""
    end = os.path.getsize(path)
    # Offset and size are compared one by one first, because their sum can overflow.
    places, lowest = images[:, :2], NO_LABEL if images.shape[1] > 3 else 0
    fit = (places >= 0).all() and (places <= end).all() and (places.sum(axis=1) <= end).all()
    return bool(fit and (images[:, 2:] >= lowest).all())


def samples_of(path: str, tar: tarfile.TarFile) -> dict[str, dict[str, Any]]:
    """Returns the samples of an archive by name: "image" -> (offset, size), and "label" -> labels, if they exist.

    Raises:
        ValueError: a sample is ambiguous.
    """
    samples: dict[str, dict[str, Any]] = {}
    others: dict[str, str] = {}  # name up to the last dot -> kind, for images and labels whose names have more dots
    end = os.path.getsize(path)
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # each keeps a copy of the records in its headers
        if not 0 <= member.size <= end:  # before tarfile seeks to the next header
            raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
        parts = SAMPLE.fullmatch(member.name)
        if parts is None or member.isdir():
            continue
        sample, (name, _, last) = samples.setdefault(parts[1], {}), member.name.lower().rpartition(".")
        kind = "image" if f".{last}" in IMAGE_ENDINGS else "label" if last == "cls" else ""
        if kind and not member.isreg():
            raise ValueError(f"{path}: {member.name} is a link: {ShardImages.advice}")
        if kind and parts[2].count(".") > 1:
            if others.setdefault(name, kind) != kind:
                raise ValueError(
                    f"{path}: {name} is not a sample, as the name of a sample ends at the first dot: write the shard "
                    "again with names without dots"
                )
        elif kind:
            if kind in sample:
                raise ValueError(f"{path}: {member.name} is a second {kind} of sample {parts[1]}: {ShardImages.advice}")
            if kind == "image":
                sample[kind] = member.offset_data, member.size
            else:
                file = tar.extractfile(member)
                text = b"" if file is None else file.read(LONGEST_LABELS).strip()
                numbers = text.split() if member.size <= LONGEST_LABELS else []
                if not numbers or not all(number.isdigit() and len(number) <= 18 for number in numbers):
                    what = f"{path}: {member.name} is {text[:40]!r}"
                    raise ValueError(f"{what}, expected a class label, or several: {ShardImages.advice}")
                sample[kind] = list(map(int, numbers))
    return samples


def next_archive(path: str, file: BinaryIO, offset: int) -> int | None:
    """Returns the offset of the next joined archive, after the zeros at `offset` where tarfile has stopped; or None.

    Raises:
        ValueError: there are no zeros.
    """
    file.seek(offset)
    if file.read(BLOCK) != bytes(BLOCK):
        raise ValueError(f"{path} is damaged or truncated at offset {offset}: copy or write it again")
    while padding := file.read(ZEROS):
        if left := len(padding.lstrip(b"\0")):
            zeros = len(padding) - left
            return file.tell() - len(padding) + zeros - zeros % BLOCK
    return None
