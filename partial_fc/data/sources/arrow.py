"""Parquet files and data sets of Hugging Face, through the package `datasets`.

Parquet can only be read in groups of rows. `datasets` therefore converts Parquet files to Arrow files in its cache
(HF_HOME) once, maps them into memory, and reads rows in any order.

Shapes: N images.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from partial_fc.data.image_set import ImageSet
from partial_fc.data.label_runs import LabelRuns, class_labels, padded
from partial_fc.utils.json_object import read_object
from partial_fc.utils.regular_files import read_regular, require_links_inside, require_regular
from partial_fc.utils.staging import NO_SPACE
from partial_fc.utils.user_code import described

from .forms import HUB_PREFIX, split_columns
from .shards import expand_shards

MAX_METADATA = 1 << 24  # bytes of a set's README or list of files
SMALL_SET = 1 << 28  # bytes; the unpacked size of larger sets is not checked
MAX_RATIO = 32  # bytes that a byte of a small Parquet file may unpack to
CHECKED_ROWS = 16  # rows unpacked at a time
BINARY = re.compile(r"(?:large_|fixed_size_)?binary(?:_view)?(?:\[\d+\])?")  # type names of pyarrow
INTEGER = re.compile(r"u?int\d+")
INTEGERS = re.compile(r"(?:large_|fixed_size_)?list<\w+: u?int\d+(?: not null)?>(?:\[\d+\])?")
TEXT = re.compile(r"(?:large_)?string(?:_view)?")


def open_hub(rec: str) -> ImageSet:
    """Opens hf:NAME, a data set of the Hub or a folder. Raises as _loading."""
    with _loading(rec) as (datasets, path, columns):
        folder = path.removeprefix(HUB_PREFIX)
        is_local = os.path.isdir(folder)
        if is_local:
            check_folder(folder)
        table = datasets.load_dataset(folder, split="train").data
    cache = str(datasets.config.HF_CACHE_HOME)
    roots = str(datasets.config.DOWNLOADED_DATASETS_PATH), folder if is_local else cache
    return ArrowImages(path, table, columns, roots)


def open_parquet(rec: str) -> ImageSet:
    """Opens Parquet files. Raises as _loading."""
    with _loading(rec) as (datasets, path, columns):
        files = expand_shards(path, ".parquet")
        for file in files:
            require_regular(file)
        check_parquet(files)
        try:
            table = datasets.Dataset.from_parquet(files).data
        except Exception:  # such as "batch_size must be positive" for a file without rows
            from pyarrow.parquet import read_metadata

            for file in files:
                if not read_metadata(file).num_rows:
                    raise ValueError(f"{file} has no rows: remove it") from None
            raise
    return ArrowImages(path, table, columns, (_folder_of(path),))


def open_saved(rec: str) -> ImageSet:
    """Opens a data set that `save_to_disk` has written. Raises as _loading."""
    with _loading(rec) as (datasets, path, columns):
        folder = path
        if os.path.exists(split_list := os.path.join(path, "dataset_dict.json")):
            require_links_inside([split_list], path)
            splits = read_object(split_list, MAX_METADATA).get("splits")
            if not isinstance(splits, list) or "train" not in splits:
                names = ", ".join(map(str, splits)) if isinstance(splits, list) else "none"
                raise ValueError(f"{path} has the splits {names}, expected train: save that one alone")
            folder = os.path.join(path, "train")
        state, info = (os.path.join(folder, name) for name in ("state.json", "dataset_info.json"))
        arrow_files = [
            os.path.join(folder, each["filename"]) for each in read_object(state, MAX_METADATA)["_data_files"]
        ]
        require_links_inside([folder, state, info, *arrow_files], path)
        for file in (info, *arrow_files):
            require_regular(file)
        for file in arrow_files:
            check_arrow(file)
        try:
            table = datasets.load_from_disk(folder).data
        except IndexError:  # datasets takes the first file of an empty list
            raise ValueError("it has no rows, or one of its splits has none") from None
    return ArrowImages(path, table, columns, (_folder_of(path),))


def _folder_of(path: str) -> str:
    return path if os.path.isdir(path) else os.path.dirname(path)


@contextmanager
def _loading(rec: str) -> Iterator[tuple[Any, str, dict[str, str]]]:
    """Yields the module `datasets`, the path in `rec`, and the columns it chooses. Names `rec` in errors of the block.

    Raises:
        ImportError: `datasets` is not installed.
        OSError: the cache of `datasets` is full.
        ValueError: the block failed for another reason.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{rec} needs the package datasets ({error}): pip install datasets") from None
    path, columns = split_columns(rec)
    try:
        yield datasets, path, columns
    except Exception as error:  # of datasets, of its file formats, or of the network
        cause: BaseException = error
        while cause.__cause__ is not None:  # the outer error is only "An error occurred while generating the dataset"
            cause = cause.__cause__
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            raise OSError(
                f"{path} does not fit into {datasets.config.HF_DATASETS_CACHE}, the cache of datasets "
                f"({cause.strerror}): free space there, or set HF_HOME to another folder"
            ) from error
        raise ValueError(f"{path} cannot be loaded by datasets ({described(cause)})") from error


def check_parquet(files: Sequence[str]) -> None:
    """Raises ValueError if a small set unpacks to gigabytes: any number of rows can refer to one stored image.

    Unpacks the files a few rows at a time. Sets of SMALL_SET bytes and more are not checked.
    """
    from pyarrow.parquet import ParquetFile

    if sum(map(os.path.getsize, files)) >= SMALL_SET:
        return
    for name in files:
        limit = MAX_RATIO * os.path.getsize(name) + SMALL_SET
        with ParquetFile(name) as file:
            # The sizes in the metadata may be false, so the rows are unpacked in any case.
            unpacked = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
            if unpacked <= limit:
                unpacked = 0
                for batch in file.iter_batches(CHECKED_ROWS):
                    unpacked += batch.nbytes
                    if unpacked > limit:
                        break
        if unpacked > limit:
            raise ValueError(f"{name} has {os.path.getsize(name):,} bytes, but more than {limit:,} when it is unpacked")


def check_folder(folder: str) -> None:
    """Raises OSError or ValueError if `datasets` would read anything but regular files in a folder, or run code."""
    for root, folders, files in os.walk(folder):
        links = [path for name in (*folders, *files) if os.path.islink(path := os.path.join(root, name))]
        require_links_inside(links, folder)
        paths = [path for name in files if os.path.exists(path := os.path.join(root, name))]  # no broken links
        for path in paths:
            require_regular(path)
            if path.endswith(".arrow"):
                check_arrow(path)
        check_parquet([path for path in paths if path.endswith(".parquet")])
    script = os.path.join(folder, f"{os.path.basename(os.path.abspath(folder))}.py")
    if os.path.exists(script):
        raise ValueError(f"{script} is code, which versions of datasets before 4 run: move it out of the folder")
    readme, standalone = (os.path.join(folder, name) for name in ("README.md", ".huggingface.yaml"))
    if os.path.exists(standalone):
        raise ValueError(f"{standalone} may name other files: move its content into {readme}, or remove it")
    if not os.path.exists(readme):
        return
    import yaml
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    text = read_regular(readme, MAX_METADATA).decode()
    header = REGEX_YAML_BLOCK.search(text)
    if header and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(header[2])):
        raise ValueError(f"{readme} has aliases, which can stand for billions of names: write them out")
    for config in MetadataConfigs.from_dataset_card_data(DatasetCard(text).data).values():
        for name in _texts((config.get("data_files"), config.get("data_dir"))):
            if "::" in name or "://" in name or name[:1] in ("/", "~") or ".." in name.split("/"):
                raise ValueError(f"{readme} names {name!r}: only files in the folder are read")


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in nested lists and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def check_arrow(path: str) -> None:
    """Raises an error of pyarrow if an Arrow file refers to memory outside of its columns, which pyarrow would read."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    with memory_map(path) as mapped:
        try:
            batches: Any = ipc.open_stream(mapped)
        except ArrowInvalid:  # the random-access format
            file = ipc.open_file(mapped)
            batches = map(file.get_batch, range(file.num_record_batches))
        for batch in batches:
            batch.validate(full=True)


class ArrowImages(ImageSet):
    """The images of a table of pyarrow or `datasets`. See ImageSet.

    Images are a binary column, or one of type `datasets.Image`; labels an integer column. If several columns fit, those
    named image and label are used. The column named label or chosen for it may have a list of labels in each row.

    Args:
        chosen: names of the columns for ``image`` and ``label``; by default they are found as above.
        roots: folders that may hold the files that the table names.
    """

    advice = "write the set again"

    def __init__(self, path: str, table: Any, chosen: Mapping[str, str] | None = None, roots: tuple[str, ...] = (".",)):
        columns = {name: table.column(name) for name in table.column_names}
        images = choose(path, "image", "encoded images", is_image, columns, chosen or {})
        labels = columns.get((chosen or {}).get("label", "label"))
        if labels is None or not is_list(labels.type):
            labels = choose(
                path, "label", "integer labels", lambda kind: INTEGER.fullmatch(str(kind)), columns, chosen or {}
            )
        self._files, self._roots = None, roots
        if str(images.type).startswith("struct"):
            fields = dict(zip((field.name for field in images.type), images.flatten()))
            images, files = fields["bytes"], fields.get("path")
            self._files = files if files is not None and TEXT.fullmatch(str(files.type)) else None
        self._images = images
        if not len(labels):
            raise ValueError(f"{path} contains no images")
        numbers = class_labels(numbers_in(path, labels), path)
        super().__init__(path, LabelRuns.of_labels(numbers), int(numbers.max()) + 1)
        column = next(name for name, each in columns.items() if each is labels)
        self.names = class_names(table.schema.metadata, column, self.num_identities)

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
        """See ImageSet."""
        return f"{self.path}: image in row {position}"


def class_names(metadata: Mapping[bytes, bytes] | None, column: str, count: int) -> list[str]:
    """Returns the names of ``count`` classes in a ClassLabel of `datasets`; empty unless all can be printed."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"][:count]
    except (KeyError, TypeError, ValueError, RecursionError):  # of another program
        return []
    return names if len(names) == count and all(isinstance(name, str) and name.isprintable() for name in names) else []


def is_image(kind: Any) -> bool:
    """Whether a pyarrow type holds encoded images: binary, or a struct with a binary field ``bytes``."""
    fields = {field.name: str(field.type) for field in kind} if str(kind).startswith("struct") else {"bytes": str(kind)}
    return BINARY.fullmatch(fields.get("bytes", "")) is not None


def is_list(kind: Any) -> bool:
    """Whether a pyarrow type holds lists of integers."""
    return INTEGERS.fullmatch(str(kind)) is not None


def numbers_in(path: str, labels: Any) -> np.ndarray:
    """Returns a column of integers as (N,), or one of lists as padded(). Raises ValueError if one is missing."""
    from pyarrow import compute

    has_lists = is_list(labels.type)
    values = compute.list_flatten(labels) if has_lists else labels
    if missing := labels.null_count or values.null_count:
        raise ValueError(f"{path} has {missing} images without a label: remove them")
    numbers: np.ndarray = values.to_numpy()
    return padded(numbers, compute.list_value_length(labels).to_numpy()) if has_lists else numbers


def choose(
    path: str, use: str, what: str, fits: Callable[[Any], object], columns: Mapping[str, Any], chosen: Mapping[str, str]
) -> Any:
    """Returns the chosen column; without a choice the one named `use`, or the only one that fits.

    Raises:
        ValueError: the choice is ambiguous, or the column does not fit.
    """
    names = [name for name, column in columns.items() if fits(column.type)]
    name = chosen.get(use, names[0] if len(names) == 1 and use not in columns else use)
    if name in names:
        return columns[name]
    types = ", ".join(f"{name} ({column.type})" for name, column in columns.items())
    expected = f"{name!r} to be a column" if use in chosen or name in columns else "a single column"
    encode = f"number its values by class_encode_column({name!r}) of datasets, or " if use == "label" else ""
    raise ValueError(
        f"{path} has the columns {types}, expected {expected} of {what}: {encode * (name in columns)}set "
        f"rec={path}#{use}=NAME"
    )
