"""Parquet files and data sets of Hugging Face, through the package `datasets`.

Parquet can only be read by groups of rows, so `datasets` writes Parquet files to its cache once (HF_HOME), as Arrow
files, which are mapped into memory and read in any order.

Shapes: N images.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns, class_labels
from partial_fc.utils.json_object import read_object
from partial_fc.utils.regular_files import open_regular, read_regular, require_links_inside
from partial_fc.utils.staging import NO_SPACE
from partial_fc.utils.user_code import described

from .forms import HUB_PREFIX, split_columns
from .shards import expand_shards

LARGEST_STATE = 1 << 24  # bytes of the list of a set's files
SMALL, UNPACKED, ROWS = 1 << 28, 32, 16  # of check_parquet: bytes, the most for a byte of a file, rows in memory
INSTALL = "pip install datasets"
BINARY = re.compile(r"(?:large_|fixed_size_)?binary(?:_view)?(?:\[\d+\])?")  # as pyarrow writes these types
INTEGER = re.compile(r"u?int\d+")
TEXT = re.compile(r"(?:large_)?string(?:_view)?")


def open_hub(rec: str) -> ImageSet:
    """Opens hf:NAME. See _open."""

    def load(datasets: Any, name: str) -> Any:
        folder = name.removeprefix(HUB_PREFIX)
        if os.path.isdir(folder):
            check_folder(folder)
        return datasets.load_dataset(folder, split="train")

    return _open(rec, load)


def open_parquet(rec: str) -> ImageSet:
    """Opens Parquet files. See _open."""

    def load(datasets: Any, pattern: str) -> Any:
        files = expand_shards(pattern, ".parquet")
        for file in files:
            open_regular(file).close()
        check_parquet(files)
        try:
            return datasets.Dataset.from_parquet(files)
        except Exception:  # among others, that the size of a batch is 0
            from pyarrow.parquet import read_metadata

            for file in files:
                if not read_metadata(file).num_rows:
                    raise ValueError(f"{file} has no rows: remove it") from None
            raise

    return _open(rec, load)


def open_saved(rec: str) -> ImageSet:
    """Opens a data set that was saved by `save_to_disk`. See _open."""

    def load(datasets: Any, folder: str) -> Any:
        part = folder
        if os.path.exists(splits := os.path.join(folder, "dataset_dict.json")):
            require_links_inside([splits], folder)
            found = read_object(splits, LARGEST_STATE).get("splits")
            if not isinstance(found, list) or "train" not in found:
                names = ", ".join(map(str, found)) if isinstance(found, list) else "none"
                raise ValueError(f"{folder} has the splits {names}, expected train: save that one alone")
            part = os.path.join(folder, "train")
        state, about = (os.path.join(part, name) for name in ("state.json", "dataset_info.json"))
        files = read_object(state, LARGEST_STATE)["_data_files"]
        paths = [about, *(os.path.join(part, file["filename"]) for file in files)]
        require_links_inside([part, state, *paths], folder)
        for path in paths:
            open_regular(path).close()
        for path in paths[1:]:
            check_arrow(path)
        try:
            return datasets.load_from_disk(part)
        except IndexError:  # it takes the first of no files
            raise ValueError("it has no rows, or one of its splits has none") from None

    return _open(rec, load)


def check_parquet(files: Sequence[str]) -> None:
    """Raises ValueError if a set of few bytes is unpacked to gigabytes: one image may stand for any number of rows.

    The files are decoded for it, but only some rows at a time; a set of SMALL bytes and more is taken as it is.
    """
    from pyarrow.parquet import ParquetFile

    if sum(map(os.path.getsize, files)) >= SMALL:
        return
    for name in files:
        largest = UNPACKED * os.path.getsize(name) + SMALL
        with ParquetFile(name) as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            left = largest if sum(group.total_byte_size for group in groups) <= largest else -1
            for batch in file.iter_batches(ROWS) if left >= 0 else ():
                left -= batch.nbytes
                if left < 0:
                    break
        if left < 0:
            raise ValueError(
                f"{name} has {os.path.getsize(name):,} bytes, but more than {largest:,} when it is unpacked"
            )


def check_folder(folder: str) -> None:
    """Raises OSError or ValueError if `datasets` would read more than the files in a folder."""
    for at, folders, files in os.walk(folder):
        paths = [os.path.join(at, name) for name in (*folders, *files)]
        require_links_inside([path for path in paths if os.path.islink(path)], folder)
        for path in paths[len(folders) :]:
            if os.path.exists(path):  # no link to nothing
                open_regular(path).close()
                if path.endswith(".arrow"):
                    check_arrow(path)
        check_parquet([path for path in paths[len(folders) :] if path.endswith(".parquet") and os.path.exists(path)])
    import yaml
    from datasets.utils.metadata import DatasetCardData, MetadataConfigs
    from huggingface_hub import DatasetCard
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    script = os.path.join(folder, f"{os.path.basename(os.path.abspath(folder))}.py")
    if os.path.exists(script):
        raise ValueError(f"{script} is code, which versions of datasets before 4 run: move it out of the folder")
    readme, standalone = (os.path.join(folder, name) for name in ("README.md", ".huggingface.yaml"))
    if os.path.exists(standalone):
        raise ValueError(f"{standalone} may name other files: move what it says into {readme}, or remove it")
    card = DatasetCardData()
    if os.path.exists(readme):
        text = read_regular(readme, LARGEST_STATE).decode()
        header = REGEX_YAML_BLOCK.search(text)
        if header and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(header[2])):
            raise ValueError(f"{readme} has aliases, some of which could stand for billions of names: write them out")
        card = DatasetCard(text).data
    for config in MetadataConfigs.from_dataset_card_data(card).values():
        for name in texts((config.get("data_files"), config.get("data_dir"))):
            if "::" in name or "://" in name or name[:1] in ("/", "~") or ".." in name.split("/"):
                raise ValueError(f"{readme} names {name!r}: only files in the folder are read")


def check_arrow(path: str) -> None:
    """Raises an error of pyarrow if an Arrow file refers to bytes outside of its columns, which pyarrow would read."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    with memory_map(path) as file:
        try:
            batches: Any = ipc.open_stream(file)
        except ArrowInvalid:  # of the other form
            found = ipc.open_file(file)
            batches = map(found.get_batch, range(found.num_record_batches))
        for batch in batches:
            batch.validate(full=True)


def texts(value: Any) -> Iterator[str]:
    """Yields the texts in lists and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def _open(rec: str, load: Callable[[Any, str], Any]) -> ImageSet:
    """Opens what `load` returns for the module `datasets` and what `rec` names without columns.

    Raises:
        ImportError: `datasets` is not installed.
        OSError, ValueError: it cannot load the set, or there are no images with labels.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{rec} needs the package datasets ({error}): {INSTALL}") from None
    path, columns = split_columns(rec)
    try:
        found = load(datasets, path)
    except Exception as error:  # its own, of its file formats, of the network
        cause: BaseException = error
        while cause.__cause__ is not None:  # "An error occurred while generating the dataset" says nothing
            cause = cause.__cause__
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            raise OSError(
                f"{path} does not fit into {datasets.config.HF_DATASETS_CACHE}, the cache of datasets "
                f"({cause.strerror}): free space there, or set HF_HOME to another folder"
            ) from error
        raise ValueError(f"{path} cannot be loaded by datasets ({described(cause)})") from error
    return ArrowImages(path, found.data, columns, roots_of(path, datasets.config))


def roots_of(path: str, config: Any) -> tuple[str, ...]:
    """Returns the folders in which a set may name files: its own, and where `datasets` unpacks what it loads."""
    if not path.startswith(HUB_PREFIX):
        return (path if os.path.isdir(path) else os.path.dirname(path),)
    folder = path.removeprefix(HUB_PREFIX)
    return str(config.DOWNLOADED_DATASETS_PATH), folder if os.path.isdir(folder) else str(config.HF_CACHE_HOME)


class ArrowImages(ImageSet):
    """The images of a pyarrow table, or of one of `datasets`. See ImageSet.

    Images are a column of encoded images, binary or as `datasets.Image`; labels one of integers. If there are several,
    those named image and label.

    Args:
        chosen: names of the columns by ``image`` and ``label``; others for those that it does not have.
        roots: folders in which the files are that the table names.
    """

    advice = "write the set again"

    def __init__(self, path: str, table: Any, chosen: Mapping[str, str] | None = None, roots: tuple[str, ...] = (".",)):
        columns = {name: table.column(name) for name in table.column_names}
        images = choose(path, "image", "encoded images", is_image, columns, chosen or {})
        labels = choose(path, "label", "integer labels", is_integer, columns, chosen or {})
        self._files, self._roots = None, roots
        if str(images.type).startswith("struct"):
            fields = dict(zip((field.name for field in images.type), images.flatten()))
            images, files = fields["bytes"], fields.get("path")
            self._files = files if files is not None and TEXT.fullmatch(str(files.type)) else None
        self._images = images
        if not len(labels):
            raise ValueError(f"{path} contains no images")
        if labels.null_count:
            raise ValueError(f"{path} has {labels.null_count} images without a label: remove them")
        numbers = class_labels(labels.to_numpy(), path)
        super().__init__(path, LabelRuns.of_labels(numbers), int(numbers.max()) + 1)

    def read(self, position: int, label: int) -> bytes:
        """See ImageSet."""
        data = self._images[position].as_py()
        if isinstance(data, bytes):
            return data
        file = None if self._files is None else self._files[position].as_py()
        if file is None:
            raise ValueError(f"{self.describe(position)} is empty: {self.advice}")
        try:
            return self.read_file(file, *self._roots)
        except ValueError as error:
            raise ValueError(f"{self.describe(position)}: {error}") from None

    def describe(self, position: int) -> str:
        """Names the row of an image."""
        return f"{self.path}: image in row {position}"


def is_image(kind: Any) -> bool:
    """Whether a pyarrow type holds encoded images: binary, or a struct with such a field ``bytes``."""
    fields = {field.name: str(field.type) for field in kind} if str(kind).startswith("struct") else {"bytes": str(kind)}
    return BINARY.fullmatch(fields.get("bytes", "")) is not None


def is_integer(kind: Any) -> bool:
    """Whether a pyarrow type holds integers."""
    return INTEGER.fullmatch(str(kind)) is not None


def choose(
    path: str, use: str, what: str, fits: Callable[[Any], bool], columns: Mapping[str, Any], chosen: Mapping[str, str]
) -> Any:
    """Returns the chosen column, that named as its use, or without one the only one that fits.

    Raises:
        ValueError: It is not clear, or the chosen one does not fit.
    """
    names = [name for name, column in columns.items() if fits(column.type)]
    name = chosen.get(use, names[0] if len(names) == 1 and use not in columns else use)
    if name in names:
        return columns[name]
    types = ", ".join(f"{name} ({column.type})" for name, column in columns.items())
    expected = f"{name!r} to be one" if use in chosen or name in columns else "one"
    encode = f"number its values by class_encode_column({name!r}) of datasets, or " if use == "label" else ""
    raise ValueError(
        f"{path} has the columns {types}, expected {expected} of {what}: {encode * (name in columns)}set "
        f"rec={path}#{use}=NAME"
    )
