"""partial-fc evaluate: files of partial-fc embed, columns, normalization, thresholds of another set, and refusals."""

import json

import numpy as np
import pytest

from command_line import exit_code
from partial_fc.evaluation.items import EmbeddedItems
from partial_fc.evaluation.metrics import build_metrics, evaluate
from partial_fc.utils.distances import normalized
from partial_fc_tools.inference.index import Index, write_index
from partial_fc_tools.inference.origin import Origin

LABELS = np.repeat(np.arange(12), 4)


def embeddings(seed):
    random = np.random.default_rng(seed)
    centers = random.standard_normal((12, 6))[LABELS]
    return normalized((centers + 0.5 * random.standard_normal(centers.shape)).astype(np.float32))


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"class{label:02}/{number}.jpg" for number, label in enumerate(LABELS)]
    for name, of_items in (("faces", names), ("flat", [f"{number}.jpg" for number in range(48)])):
        write_index(name, Index(embeddings(0), of_items), Origin("", True))
    np.save("dev.npy", embeddings(1))
    np.save("cohort.npy", normalized(np.random.default_rng(2).standard_normal((50, 6)).astype(np.float32)))
    np.save("labels.npy", LABELS)
    np.save("is_query.npy", np.arange(48) % 2 == 0)
    np.save("cameras.npy", np.arange(48) // 2 % 2)
    np.save("pairs.npy", np.array([[0, 1], [0, 5], [9, 8], [9, 40]]))
    np.save("huge.npy", LABELS.astype(np.uint64) + np.uint64(2**63))
    np.save("zeros.npy", 0 * LABELS)


def measured(capsys, *words):
    assert exit_code("evaluate", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_classes_are_the_folders_of_the_names(capsys):
    expected = evaluate(EmbeddedItems(embeddings(0), LABELS), build_metrics(["recall", "map"], {}))
    found = measured(capsys, "faces")
    assert found == {name: figure._asdict() for name, figure in expected.items()}
    assert measured(capsys, "faces.npy", "labels.npy") == measured(capsys, "faces", "huge.npy") == found
    assert exit_code("evaluate", "faces") == 0
    table = capsys.readouterr().out
    assert f"{expected['map'].value:.5f}" in table and "48 queries, 48 in the gallery, 12 classes" in table


def test_columns_and_options(capsys):
    words = ("labels.npy", "--queries", "is_query.npy", "--cameras", "cameras.npy", "--metrics", "cmc,map")
    items = EmbeddedItems(embeddings(0), LABELS, np.arange(48) % 2 == 0, np.arange(48) // 2 % 2)
    expected = evaluate(items, build_metrics(["cmc", "map"], {"ranks": (1, 3)}))
    found = measured(capsys, "faces", *words, "--options", "ranks=(1,3)")
    assert {name: figure["value"] for name, figure in found.items()} == {
        name: figure.value for name, figure in expected.items()
    }
    assert measured(capsys, "faces", "labels.npy", "--pairs", "pairs.npy", "--metrics", "tar")


def test_cohort_and_thresholds_of_another_set(capsys):
    words = ("faces", "labels.npy", "--metrics", "eer,min_dcf", "--options", "p_target=0.05")
    plain = measured(capsys, *words)
    further = measured(capsys, *words, "--thresholds-from", "dev", "labels.npy")
    assert {name: further[name] for name in plain} == plain
    assert set(further) - set(plain) == {"frr_eer", "far_eer", "frr_min_dcf", "far_min_dcf", "act_dcf"}
    assert further["act_dcf"]["value"] >= plain["min_dcf"]["value"]
    assert measured(capsys, *words, "--cohort", "cohort", "--cohort-top", "20")["eer"] != plain["eer"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["faces", "dev.npy"], "dev.npy holds float32, expected integers"),
        (["dev"], "dev.txt"),
        (["faces", "--metrics", "recal"], "recall"),
        (["faces", "--options", "rank=1"], "rank is an option of none"),
        (["faces", "--thresholds-from", "dev", "labels.npy"], "add eer, min_dcf or tar"),
        (["faces", "--metrics", "eer", "--thresholds-from", "dev", "zeros.npy"], "--thresholds-from: there are no"),
        (["flat"], "line 1: the name has no folder: give LABELS"),
        (["faces", "--cohort", ""], "'' is a folder"),
        (["faces", ""], "No such file"),
        (["faces", "--pairs", ""], "No such file"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message, capsys):
    assert exit_code("evaluate", *words) == 2
    assert message in capsys.readouterr().err
