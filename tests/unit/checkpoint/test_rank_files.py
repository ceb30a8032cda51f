import os

from partial_fc.checkpoint.rank_files import files_of_ranks, remove_files_of_other_ranks


def touch(folder, *names):
    for name in names:
        (folder / name).touch()


def test_files_are_in_the_order_of_the_ranks_up_to_the_first_missing_one(tmp_path):
    ranks = (0, 1, 2, 9, 10**11)  # a stray file of a huge rank
    touch(
        tmp_path, *(f"{rank}_centers.param" for rank in ranks), "00_centers.param", "11_centers.param.0123abcd.writing"
    )
    expected = [str(tmp_path / f"{rank}_centers.param") for rank in range(4)]
    assert files_of_ranks(str(tmp_path), "{}_centers.param") == expected
    assert files_of_ranks(str(tmp_path), "{}_centers_mom.param") == []


def test_files_of_ranks_that_a_smaller_job_does_not_have_are_removed(tmp_path):
    others = ["11_other.param", "05_centers.param", "2_centers.param.0123abcd.writing", "model-0002.params"]
    touch(tmp_path, *others, *(f"{rank}_{kind}.param" for rank in range(12) for kind in ("centers", "centers_mom")))
    remove_files_of_other_ranks(str(tmp_path), ("{}_centers.param", "{}_centers_mom.param"), 2)
    left = [f"{rank}_{kind}.param" for rank in range(2) for kind in ("centers", "centers_mom")]
    assert sorted(os.listdir(tmp_path)) == sorted(others + left)
