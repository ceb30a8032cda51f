"""Parquet and data sets of Hugging Face: the same batches as train.rec."""

import json
import os
import shutil
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from damage import check_damaged, memory_below
from face_sets import face_batches
from image_forms import SIZE, draw, hugging_face, write_parquet, write_records, write_saved
from partial_fc.data.sources.arrow import ArrowImages
from partial_fc.data.sources.forms import open_images
from paths import with_root
from small_disk import small_disk

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def batches(rec):
    faces = face_batches(rec, 6, SIZE, shuffle=True)
    return [(images.tobytes(), labels.tolist()) for images, labels in (faces.batch(0, 0), faces.batch(1, 6))]


def test_every_form_has_the_batches_of_train_rec(tmp_path):
    expected = batches(write_records(tmp_path / "rec", draw()))
    saved, folder = write_saved(tmp_path / "saved", draw()), write_parquet(tmp_path / "parquet", draw())
    splits = datasets.DatasetDict({"train": hugging_face(draw()), "test": hugging_face(draw((1,)))})
    splits.save_to_disk(str(tmp_path / "splits"))
    for rec in (saved, folder, f"{folder}/train-0.parquet", f"{folder}/*.parquet", f"hf:{folder}", tmp_path / "splits"):
        assert batches(rec) == expected
    datasets.DatasetDict({"test": splits["test"]}).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(ValueError, match="other has the splits test, expected train"):
        open_images(str(tmp_path / "other"))


@pytest.mark.parametrize("write", [write_saved, write_parquet])
def test_a_set_that_is_read_again_is_the_same_until_it_is_written_again(write, tmp_path):
    people = draw((3, 3, 3, 3, 3, 3))
    rec = write(tmp_path / "set", people)
    first = batches(rec), open_images(rec).digest
    assert (batches(rec), open_images(rec).digest) == first  # with the cache of the first opening
    shutil.rmtree(rec)
    write(tmp_path / "set", people[::-1])
    assert batches(rec) == batches(write_records(tmp_path / "expected", people[::-1]))
    assert open_images(rec).digest != first[1]


def test_a_set_that_was_shuffled_selected_and_joined_is_read_as_it_was_saved(tmp_path):
    made = datasets.Dataset.from_list([{"image": b"%d" % row, "label": row} for row in range(20)])
    chosen = made.shuffle(seed=0).select(range(5, 12))
    joined = datasets.concatenate_datasets([chosen, made.select([19, 3])])
    joined.save_to_disk(tmp_path / "saved")
    images = open_images(tmp_path / "saved")
    expected = joined["label"][:]
    assert images.labels(np.arange(9)).tolist() == expected and expected[-2:] == [19, 3]
    assert [images.read(row, 0) for row in range(9)] == [b"%d" % label for label in expected]


def test_images_may_be_files_and_columns_may_have_other_names(tmp_path):
    people = draw((3, 1))
    files = [tmp_path / f"{number}.png" for number in (0, 2)]
    for file, image in zip(files, people[0][::2]):
        file.write_bytes(image)
    from_file, of_last = ({"bytes": None, "path": str(file)} for file in files)
    rows = {"photo": [from_file, {"bytes": people[0][1], "path": None}, of_last]}
    features = {"photo": datasets.Image(), "person": datasets.ClassLabel(num_classes=2)}
    made = datasets.Dataset.from_dict({**rows, "person": [1, 0, 1]}, features=datasets.Features(features))
    images = ArrowImages("faces", made.data, roots=(str(tmp_path),))  # save_to_disk would copy the files into the set
    assert [images.read(row, label) for row, label in enumerate((1, 0, 1))] == people[0]
    assert images.labels([0, 1, 2]).tolist() == [1, 0, 1]
    os.remove(tmp_path / "0.png")
    with pytest.raises(ValueError, match=r"faces: image in row 0: .*0\.png cannot be read"):
        images.read(0, 1)


@pytest.mark.parametrize(
    "kind", [pyarrow.list_(pyarrow.int64()), pyarrow.large_list(pyarrow.uint8()), pyarrow.list_(pyarrow.int32(), 2)]
)
def test_rows_may_have_several_labels(kind):
    rows = [[4, 1], [3, 0], [2, 2]] if "fixed" in str(kind) else [[4, 1], [], [2]]
    chunks = [pyarrow.array(part, kind) for part in (rows[:1], rows)]
    encoded = pyarrow.array([b"0", b"1", b"2"])
    labels = pyarrow.chunked_array(chunks).slice(1)
    boxes = pyarrow.array([[1, 2]] * 3)
    table = pyarrow.table({"image": encoded, "label": labels, "box": boxes, "person": pyarrow.array([5, 6, 7])})
    expected = [[*row, *[-1] * (2 - len(row))] for row in rows]
    assert ArrowImages("faces", table).labels(np.arange(3)).tolist() == expected
    assert ArrowImages("faces", table, {"label": "person"}).labels(np.arange(3)).tolist() == [5, 6, 7]
    assert ArrowImages("faces", table, {"label": "box"}).labels(np.arange(3)).tolist() == [[1, 2]] * 3
    with pytest.raises(
        ValueError, match="expected a single column of integer labels"
    ):  # without a name, lists may be anything
        ArrowImages("faces", table.drop_columns(["label", "person"]))


@pytest.mark.parametrize("rows", [[[1], None], [[1], [2, None]]])
def test_rows_whose_lists_lack_a_label_are_refused(rows):
    table = pyarrow.table({"image": pyarrow.array([b"0", b"1"]), "label": pyarrow.array(rows)})
    with pytest.raises(ValueError, match="faces has 1 images without a label"):
        ArrowImages("faces", table)


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"label": [0]}, r"has the columns label \(int64\), expected a single column of encoded images: .*#image="),
        ({"a": [b"1"], "b": [b"2"], "label": [0]}, "expected a single column of encoded images"),
        (
            {"a": [[b"1"]], "b": [[{"bytes": b"1"}]], "c": [{"bytes": [b"1"]}], "label": [0]},
            "a single column of encoded images",
        ),
        ({"image": [b"1"]}, "expected a single column of integer labels: .*#label="),
        *(
            ({"image": [b"1"], "label": [wrong]}, "'label' to be a column .* class_encode_column")
            for wrong in ("a", True)
        ),
        ({"image": ["text"], "photo": [b"1"], "label": [0]}, r"expected 'image' to be a column of encoded .*#image="),
        ({"image": [b"1", b"2"], "label": [0, None]}, "has 1 images without a label"),
        ({"image": [b"1", b"2"], "label": np.array([0, 2**63 + 5], np.uint64)}, f"item 1 has the label {2**63 + 5}: "),
        ({"image": np.zeros(0, "S1"), "label": np.zeros(0, int)}, "has no rows"),
    ],
)
def test_tables_without_images_or_labels_are_refused(columns, message, tmp_path):
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match=f"saved.*({message})"):
        open_images(tmp_path / "saved")


ROWS = {
    "image": [b"a", b"b"],
    "photo": [{"bytes": b"c", "path": None}, {"bytes": b"d", "path": None}],
    "large": pyarrow.array([b"e", b"f"], pyarrow.large_binary()),
    "fixed": pyarrow.array([b"i", b"j"], pyarrow.binary(1)),
    "crops": [[b"g"], [b"h"]],
    "label": [0, 1],
    "person": [3, 2],
}


def test_columns_are_chosen_by_rec(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    rec = f"{folder}/a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(ROWS), rec)
    for chosen, read, labels in (
        ("", b"a", [0, 1]),  # next to a column of lists
        ("#image=photo", b"c", [0, 1]),
        ("#image=fixed", b"i", [0, 1]),
        ("#label=person,image=large", b"e", [3, 2]),
    ):
        for path in (rec, f"{folder}/*.parquet", folder, f"hf:{folder}"):
            images = open_images(f"{path}{chosen}")
            assert images.read(0, labels[0]) == read and images.labels([0, 1]).tolist() == labels
    for wrong, message in (
        ("image=crops", r"crops \(list.*'crops' to be a column of encoded images"),
        ("label=name", "'name'.*integer labels"),
    ):
        with pytest.raises(ValueError, match=f"a.parquet has the columns .*{message}"):
            open_images(f"{rec}#{wrong}")


def test_an_image_that_is_missing_is_bad_and_named(tmp_path):
    rows = {"image": [None, {"bytes": draw()[0][0], "path": None}, {"bytes": None, "path": None}], "label": [0, 1, 2]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    faces = face_batches(tmp_path / "a.parquet", 3, SIZE, skip_bad_images=2)
    assert faces.batch(0, 0)[1].tolist() == [1, 1, 1] and "a.parquet: image in row 0 is empty" in faces.log.bad[0]


def test_a_table_without_rows_and_a_full_cache_are_named(tmp_path, monkeypatch):
    table = pyarrow.table({"image": [bytes(2_000_000)], "label": [0]})
    for name, rows in (("a", table), ("b", table[:0])):
        pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match="b.parquet has no rows"):
        open_images(f"{tmp_path}/*.parquet")
    with small_disk(tmp_path / "disk", "1m") as disk:
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(disk))
        with pytest.raises(OSError, match=f"a.parquet .*{disk}.*HF_HOME"):
            open_images(tmp_path / "a.parquet")


def test_what_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    for rec in (tmp_path / "a.parquet", f"hf:{tmp_path}/none"):
        with pytest.raises(ValueError, match=f"{rec} cannot be loaded by datasets"):
            open_images(rec)


@pytest.fixture
def saved(tmp_path):
    """A set written by save_to_disk, next to a file that it must not read."""
    (tmp_path / "private.png").write_bytes(draw()[0][0])
    rows = {"image": [{"bytes": image, "path": None} for image in draw()[0]], "label": [0] * len(draw()[0])}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "set")
    return tmp_path / "set"


def name_outside(folder):
    state = json.loads((folder / "state.json").read_text())
    os.rename(folder / state["_data_files"][0]["filename"], folder.parent / "private.arrow")
    state["_data_files"][0]["filename"] = "../private.arrow"
    (folder / "state.json").write_text(json.dumps(state))


def link_outside(folder):
    state = json.loads((folder / "state.json").read_text())
    file = folder / state["_data_files"][0]["filename"]
    os.rename(file, folder.parent / "private.arrow")
    file.symlink_to("../private.arrow")


def move_split(folder):
    os.rename(folder, folder.parent / "private")
    folder.mkdir()
    (folder / "train").symlink_to("../private")
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')


def link_list_of_splits(folder):
    datasets.DatasetDict({"train": datasets.load_from_disk(str(folder))}).save_to_disk(str(folder.parent / "splits"))
    shutil.rmtree(folder)
    os.rename(folder.parent / "splits", folder)
    os.rename(folder / "dataset_dict.json", folder.parent / "private.json")
    (folder / "dataset_dict.json").symlink_to("../private.json")


@pytest.mark.parametrize("change", [name_outside, link_outside, move_split, link_list_of_splits])
def test_what_was_saved_names_files_of_its_folder_only(change, saved):
    assert open_images(str(saved)).num_images
    change(saved)
    with pytest.raises(ValueError, match="it is outside of"):
        open_images(str(saved))


def arrow_file(folder):
    (file,) = folder.glob("*.arrow")
    return file


def read_all(rec):
    images = open_images(rec)
    for row, label in enumerate(images.labels(np.arange(images.num_images)).tolist()):
        with suppress(ValueError):
            images.read(row, label)


@pytest.mark.parametrize("form", ["{}", "hf:{}"])
def test_columns_that_refer_to_memory_outside_of_the_file_are_refused(form, tmp_path):
    rows = {"image": [bytes([65 + row]) * 1000 for row in range(3)], "label": [0, 1, 2]}
    types = datasets.Features({"image": datasets.Value("binary"), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict(rows, features=types).save_to_disk(str(tmp_path / "set"))
    file = arrow_file(tmp_path / "set")
    if form != "{}":
        for other in ("state.json", "dataset_info.json"):
            os.remove(tmp_path / "set" / other)
    rec, content = form.format(tmp_path / "set"), bytearray(file.read_bytes())
    assert open_images(rec).read(2, 2) == b"C" * 1000
    place = content.find(struct.pack("<4i", 0, 1000, 2000, 3000))
    for last in (200_000_000, -1):
        struct.pack_into("<i", content, place + 12, last)
        file.write_bytes(content)
        with pytest.raises(ValueError, match="set cannot be loaded"):
            open_images(rec)


@pytest.mark.parametrize("images, size", [(1, 400_000_000), (2000, 1_000_000)])
def test_a_small_file_that_is_unpacked_to_gigabytes_is_refused(images, size, tmp_path):
    column = pyarrow.DictionaryArray.from_arrays(np.zeros(images, np.int32), [bytes(size)])
    table = pyarrow.table({"image": column, "label": np.arange(images)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", compression="zstd", store_schema=False)
    for form in ("{}/a.parquet", "hf:{}"):
        with (
            memory_below(600),
            pytest.raises(ValueError, match=r"a.parquet has [\d,]+ bytes, but more than [\d,]+ when it"),
        ):
            open_images(form.format(tmp_path))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kind, path", [("binary", b"/etc/hostname"), ("int64", 3), ("list<string>", ["a"])])
def test_paths_that_are_no_text_are_no_paths(kind, path, tmp_path):
    types = {"binary": pyarrow.binary(), "int64": pyarrow.int64(), "list<string>": pyarrow.list_(pyarrow.string())}
    arrays = [pyarrow.array([None], pyarrow.binary()), pyarrow.array([path], types[kind])]
    table = pyarrow.table({"image": pyarrow.StructArray.from_arrays(arrays, ["bytes", "path"]), "label": [0]})
    with pytest.raises(ValueError, match="set: image in row 0 is empty"):
        ArrowImages("set", table).read(0, 0)


def test_damaged_arrow_files_are_refused_or_read(saved):
    file = arrow_file(saved)
    check_damaged(saved, file.read_bytes(), read_all, write=file.write_bytes)


def test_named_pipes_are_refused(saved):
    os.remove(saved / "dataset_info.json")
    os.mkfifo(saved / "dataset_info.json")
    with pytest.raises(ValueError, match="not a regular file"):
        open_images(str(saved))
    (saved.parent / "parquet").mkdir()
    os.mkfifo(saved.parent / "parquet" / "a.parquet")
    with pytest.raises(ValueError, match="not a regular file"):
        open_images(str(saved.parent / "parquet"))


@pytest.mark.parametrize("name", ["https://127.0.0.1:9/a.parquet", "../a.parquet", "/etc/a.parquet", "zip://a::b.zip"])
@pytest.mark.parametrize("key", ["data_files", "data_dir"])
def test_the_readme_of_a_folder_names_files_of_the_folder_only(name, key, tmp_path):
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  {key}: {name}\n---\n")
    with pytest.raises(ValueError, match="only files in the folder are read"):
        open_images(f"hf:{tmp_path}")


# Prints the number of images read or the error, and the socket events, for each set. Runs in a process of its own,
# because an audit hook cannot be removed. The last folder is loaded without our checks.
WATCHED = """
import json, os, sys
events = []

def watch(name, details):
    if name.startswith("socket.") and name != "socket.__new__":  # the latter also for pipes of an event loop
        events.append([name, repr(details[1:])])

sys.addaudithook(watch)
import datasets
from partial_fc.data.sources.forms import open_images

def read_all(rec):
    images = open_images(rec)
    return [bytes(images.read(row, int(images.labels([row])[0]))) for row in range(images.num_images)]

*sets, unchecked = sys.argv[1:]
for read, rec in [*((read_all, rec) for rec in sets), (datasets.load_dataset, unchecked)]:
    try:
        outcome = len(read(rec))
    except (ValueError, OSError) as error:
        outcome = str(error)
    print(json.dumps([outcome, events]))
    events.clear()
"""
NOBODY = "127.0.0.1:9"


def test_a_set_given_as_a_path_opens_no_address_of_the_network(tmp_path):
    saved, parquet = write_saved(tmp_path / "saved", draw()), write_parquet(tmp_path / "parquet", draw())
    readme, rows = tmp_path / "readme", tmp_path / "rows"
    for folder in (readme, rows):
        folder.mkdir()
    config = f"configs:\n- config_name: default\n  data_files: http://{NOBODY}/a.parquet"
    (readme / "README.md").write_text(f"---\n{config}\n---\n")
    images = [{"bytes": draw()[0][0], "path": None}, {"bytes": None, "path": f"http://{NOBODY}/a.png"}]
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": [0, 0]}), rows / "a.parquet")
    sets = [saved, parquet, f"hf:{parquet}", f"hf:{readme}", rows, f"hf:{rows}", readme]
    online = {name: value for name, value in with_root().items() if not name.lower().endswith(("_offline", "_proxy"))}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *map(str, sets)],
        env={**online, "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *found, (_, events) = map(json.loads, done.stdout.splitlines())
    *read, of_readme, of_rows, of_hub_rows = [outcome for outcome, _ in found]
    assert read == [sum(map(len, draw()))] * 3
    assert f"'http://{NOBODY}/a.parquet': only files in the folder are read" in of_readme
    assert all(f"row 1: http://{NOBODY}/a.png cannot be read" in outcome for outcome in (of_rows, of_hub_rows))
    assert [sockets for _, sockets in found] == [[]] * len(found)
    assert "socket.connect" in [name for name, _ in events] and "'127.0.0.1', 9" in str(events)


@pytest.mark.parametrize("end", ["*a40", "&b [*b]"])
def test_the_readme_of_a_folder_has_no_aliases(end, tmp_path):
    """With 40 lines that each refer to the previous one twice, the names would fill the memory."""
    doubled = "".join(f"a{line}: &a{line} [*a{line - 1}, *a{line - 1}]\n" for line in range(1, 41))
    text = f"a0: &a0 [x]\n{doubled}configs:\n- config_name: default\n  data_files: {end}\n"
    (tmp_path / "README.md").write_text(f"---\n{text}---\nA *text* & more\n")
    with pytest.raises(ValueError, match="README.md has aliases"):
        open_images(f"hf:{tmp_path}")
    write_parquet(tmp_path / "set", draw())
    (tmp_path / "set" / "README.md").write_text("---\nlicense: mit\n---\nA *text* & [more] *b\n")
    assert open_images(f"hf:{tmp_path / 'set'}").num_images == 20


def test_a_folder_for_datasets_holds_no_script_of_its_name(tmp_path):
    folder = write_parquet(tmp_path / "faces", draw())
    (tmp_path / "faces" / "faces.py").write_text("open('marker', 'w')")
    for path in (folder, f"{folder}/", f"{folder}/."):
        with pytest.raises(ValueError, match="faces.py is code"):
            open_images(f"hf:{path}")


def test_a_folder_for_datasets_holds_no_links_out_of_it(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.parquet").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="it is outside of"):
        open_images(f"hf:{tmp_path / 'set'}")


@pytest.mark.parametrize(
    "path", ["../private.png", "/dev/zero", "/etc/hostname", "set/pipe", "/proc/self/mem", "\0", "a" * 300]
)
def test_the_paths_of_a_table_are_in_its_folder(path, saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    os.mkfifo("set/pipe")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({"image": [{"bytes": None, "path": path}], "label": [0]}, features=features)
    images = ArrowImages("set", made.data, roots=("set",))
    with pytest.raises(ValueError, match="set: image in row 0"):
        images.read(0, 0)
