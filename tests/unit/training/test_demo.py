"""When the faces of the demo are drawn."""

import os

import pytest

import default
from image_forms import draw, write_shards
from partial_fc.data.sources.forms import set_path
from partial_fc.training.inputs import check_records, draw_demo, require_set


def test_the_demo_is_not_drawn_into_a_folder_that_the_user_names_and_that_is_missing(tmp_path):
    missing = tmp_path / "no-such-folder"
    settings = default.generate_config(changes={"data_root": str(missing)})
    with pytest.raises(ValueError, match=f"data_root is {missing}, which does not exist, and the faces of the demo"):
        draw_demo(settings, os.path.abspath("data"))
    assert not missing.exists()


@pytest.mark.parametrize("changes", [{"debug": True}, {"dataset": "emore"}, {"rec": "/sets/own", "dataset": "demo"}])
def test_other_data_are_not_drawn(changes, tmp_path):
    settings = default.generate_config(changes={**changes, "data_root": str(tmp_path / "none")})
    draw_demo(settings, os.path.abspath("data"))
    assert not (tmp_path / "none").exists()


def test_a_wrong_rec_is_refused_with_advice(tmp_path):
    (tmp_path / "photos" / "person").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"set rec=.*photos$"):
        check_records(str(tmp_path / "photos" / "train.rec"))
    with pytest.raises(ValueError, match="debug=True"):
        check_records("/train_tmp/synthetic/train.rec")
    check_records(str(tmp_path / "photos" / "person" / "train.rec"))  # reported as missing by require_set


def test_the_index_of_shards_is_made_before_the_ranks_start(tmp_path):
    check_records(write_shards(tmp_path, draw()))
    assert len(list(tmp_path.glob("*.tar.index"))) == len(list(tmp_path.glob("*.tar"))) == 3


def test_a_missing_set_is_named_as_the_user_has_named_it(tmp_path):
    person = tmp_path / "photos" / "person"
    person.mkdir(parents=True)
    (person / "a.jpg").touch()
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "nofolder", "nofolder does not exist: set rec"),
        (person, f"person has images, but no folders: give the folder that .* such as rec={person.parent}$"),
        (tmp_path / "empty", r"empty/train.rec \(the records\) does not exist: check"),
    ):
        with pytest.raises((OSError, ValueError), match=message):
            require_set(set_path(str(folder)))
    require_set(set_path(str(person.parent)))
    require_set("hf:faces")
