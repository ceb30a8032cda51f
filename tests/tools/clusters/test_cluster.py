"""partial-fc cluster: spherical k-means against a slow reference, its bits, its memory, and what it refuses."""

import os
import tracemalloc

import numpy as np
import pytest

from command_line import exit_code, start
from partial_fc_tools.clusters import kmeans

pytest.importorskip("faiss", reason="pip install faiss-cpu")


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def embeddings(count=200, size=8, seed=0):
    return unit(np.random.default_rng(seed).standard_normal((count, size)))


def slow_centers(rows, first, used, iterations):
    """Spherical k-means in float64, item by item, from the centers ``first``; no cluster may become empty."""
    rows, centers = rows.astype(np.float64), rows[first].astype(np.float64)
    for _ in range(iterations):
        members = [[] for _ in centers]
        for row in rows[used]:
            members[int(np.argmax(centers @ row))].append(row)
        sums = np.array([np.sum(own, axis=0) for own in members])
        centers = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return centers


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", embeddings())
    return tmp_path


def cluster(*words, source="a"):
    return exit_code("cluster", source, "--out", "labels.npy", *words)


@pytest.mark.parametrize("sample", [2, 256])
def test_centers_and_labels_are_those_of_a_slow_reference(monkeypatch, capsys, sample):
    monkeypatch.setattr(kmeans, "BATCH", 37)
    monkeypatch.setattr(kmeans, "SAMPLE", sample)
    rows, seed = embeddings(), 3
    order = np.random.Generator(np.random.PCG64(seed)).random(len(rows)).argsort()
    expected = slow_centers(rows, np.sort(order[:11]), order[: 11 * sample], 4)
    centers = kmeans.find_centers(rows, 11, 4, seed, lambda count: None)
    assert centers.dtype == np.float32
    np.testing.assert_allclose(centers, expected, atol=1e-6)
    cosines = np.sort(rows @ expected.T.astype(np.float32), axis=1)[:, ::-1]
    order = (rows @ expected.T).argsort(axis=1)[:, ::-1]
    for count in (3, 1):
        assert cluster("--classes", 11, "--labels", count, "--iterations", 4, "--seed", seed, "--force") == 0
        labels = np.load("labels.npy")
        assert labels.dtype == np.int64
        assert np.array_equal(labels, order[:, 0] if count == 1 else order[:, :count])
        sizes = np.bincount(order[:, 0], minlength=11)
        printed = capsys.readouterr().out
        assert f"of {sizes.min()} to {sizes.max()} embeddings" in printed
        assert f"mean cosine to the nearest center {cosines[:, 0].mean():.3f}" in printed


def test_the_seed_decides_on_the_bits_and_the_threads_do_not(place, monkeypatch):
    np.save("a.npy", embeddings(5000, 24))
    files = {}
    for name, seed, threads in (("one", 0, 1), ("again", 0, 1), ("threads", 0, 3), ("other", 1, 1)):
        words = ["cluster", "a", "--classes", 300, "--labels", 4, "--out", name, "--seed", seed, "--iterations", 5]
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        done = start(*words)
        assert done.returncode == 0, done.stderr
        files[name] = (place / name).read_bytes()
    assert files["one"] == files["again"] == files["threads"] != files["other"]


def test_a_center_without_embeddings_splits_a_large_cluster(capsys):
    rows = np.concatenate([np.repeat(embeddings(1), 60, axis=0), embeddings(60, seed=1)])
    np.save("a.npy", rows)
    assert cluster("--classes", 12, "--iterations", 0) == 0  # half of the first centers are copies of one embedding
    assert "clusters without embeddings" in capsys.readouterr().out
    assert cluster("--classes", 12, "--force") == 0
    assert "without embeddings" not in capsys.readouterr().out
    assert np.unique(np.load("labels.npy")).tolist() == list(range(12))


def test_clusters_that_must_be_empty_are_reported(capsys):
    np.save("a.npy", np.repeat(embeddings(3), 20, axis=0))
    assert cluster("--classes", 5) == 0
    printed = capsys.readouterr().out
    assert "5 clusters of 0 to 20 embeddings" in printed and "2 clusters without embeddings" in printed
    labels = np.load("labels.npy").reshape(3, 20)
    assert (labels == labels[:, :1]).all() and len(np.unique(labels)) == 3


def test_the_embeddings_are_never_in_memory_at_once():
    rows = 100_000
    np.save("a.npy", embeddings(1000, 128).repeat(rows // 1000, axis=0))
    mapped = np.load("a.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        centers = kmeans.find_centers(mapped, 400, 1, 0, lambda count: None)
        assert sum(len(numbers) for numbers, _ in kmeans.assigned(mapped, centers, 2)) == rows
        assert tracemalloc.get_traced_memory()[1] < mapped.nbytes / 1.5
    finally:
        tracemalloc.stop()


def test_centers_are_split_in_parts(monkeypatch):
    """Half of the clusters may be empty, and the centers take most of the memory."""
    whole, counts = embeddings(8000, 64), np.arange(8000) % 2 * 7
    parts, sums = whole.copy(), 2 * whole
    kmeans.move(whole, sums, counts)
    monkeypatch.setattr(kmeans, "PART", 50, raising=False)
    tracemalloc.start()
    try:
        kmeans.move(parts, sums, counts)
        assert tracemalloc.get_traced_memory()[1] < parts.nbytes / 4
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--classes", 201], "a has 200 embeddings"),
        (["--classes", 2, "--labels", 3], "--labels is 3"),
        (["--classes", 0], "1 or more"),
        (["--classes", 2, "--out", "."], "is a folder"),
        (["--classes", 2, "--out", "a.npy"], "a.npy already exists"),
    ],
)
def test_what_is_refused_writes_nothing(place, capsys, words, message):
    before = sorted(place.iterdir())
    assert cluster(*words) == 2
    error = capsys.readouterr().err
    assert message in error and sorted(place.iterdir()) == before


def test_embeddings_must_have_length_1(capsys):
    rows = embeddings()
    rows[7] *= 2
    np.save("a.npy", rows)
    assert cluster("--classes", 3) == 2
    assert "row 7" in capsys.readouterr().err and not os.path.exists("labels.npy")
