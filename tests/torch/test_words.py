"""The example of word forms: dictionary, split, evaluation, and commands."""

import json

import numpy as np
import pytest
import torch

import default
from command_line import call, exit_code
from examples.words import __main__ as making
from examples.words import evaluate, several_labels
from examples.words.baselines import baselines
from examples.words.dictionary import read_lexemes
from examples.words.heldout import held_out, search, verify_pairs
from examples.words.lexemes import LEAST_FORMS, WIDTH, decode, encode, read_set, split_lexemes, write_files
from examples.words.network import words as word_network
from examples.words.task import Words
from partial_fc.checkpoint import CheckpointFolder
from partial_fc.training.trainer import train
from partial_fc_torch.build import TorchFramework

SETTINGS = "examples/words/settings.json"
READER = "examples.words.lexemes:encode_word"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folder of the quick set."""
    folder = tmp_path_factory.mktemp("sets") / "words"
    assert call(making, "--root", folder, "--quick") == 0
    return folder


@pytest.fixture(scope="module")
def held(root):
    lexemes = read_set(root)
    return held_out(lexemes, split_lexemes(lexemes, 50, 60, 0).unseen, 100, 3, 0)


def test_the_dictionary_has_the_forms_of_a_lexeme():
    lexemes = list(read_lexemes("жит"))
    assert {"жить", "живу", "жил", "живший"} <= set(next(forms for forms in lexemes if forms[0] == "жить"))
    best = next(forms for forms in read_lexemes("хорош") if forms[0] == "хороший")
    assert {"хорошего", "лучший"} <= set(best) and len(best) == len(set(best))


def test_words_become_letters_and_come_back():
    words = ["ёж", "кто-то", "я" * WIDTH]
    letters = encode(words)
    assert letters.shape == (3, WIDTH) and letters.dtype == np.uint8 and decode(letters) == words
    for word in ("", "Ёж", "dog", "я" * (WIDTH + 1), "два слова"):
        with pytest.raises(ValueError, match="is not a word"):
            encode([word])


def test_equal_lexemes_are_one_class_and_common_forms_are_known(tmp_path):
    lexemes = [["ёж", "ежа", "ежи"], ["ёж", "ежи", "ежа"], ["еж-2"], ["ежа"], ["дом", "дома"]]
    write_files(lexemes, tmp_path)
    (tmp_path / "lexemes.json").write_text("{}")
    found = read_set(tmp_path)
    assert decode(found.letters) == ["ёж", "ежа", "ежи", "ежа", "дом", "дома"]
    assert found.starts.tolist() == [0, 3, 4, 6]
    assert found.shared.tolist() == [False, True, False, True, False, False]
    assert decode(found.letters[found.forms(np.array([0, 2]))]) == ["ёж", "ежа", "ежи", "дом", "дома"]


def test_more_classes_contain_those_of_fewer_and_none_is_unseen(root):
    lexemes = read_set(root)
    small, large, every = (split_lexemes(lexemes, classes, 100, 0) for classes in (50, 200, 0))
    assert set(small.trained) < set(large.trained) < set(every.trained)
    assert len(every.trained) == len(lexemes.starts) - 1 - 100
    for split in (small, large, every):
        np.testing.assert_array_equal(split.unseen, small.unseen)
        assert not set(split.unseen) & set(split.trained)
    assert set(split_lexemes(lexemes, 50, 100, 1).unseen) != set(small.unseen)
    for lexeme in small.unseen:
        shared = lexemes.shared[lexemes.starts[lexeme] : lexemes.starts[lexeme + 1]]
        assert not shared[0] and np.sum(~shared) >= LEAST_FORMS
    with pytest.raises(ValueError, match="of 1,344 lexemes have enough forms"):
        split_lexemes(lexemes, 0, 1300, 0)


def test_the_probes_are_other_forms_of_the_entries(root, held):
    forms = {word: set(own) for own in read_lexemes("ж") for word in own[:1]}
    gallery = decode(held.gallery)
    for probe, mate in zip(decode(held.probes), held.mates.tolist()):
        assert probe in forms[gallery[mate]] and probe != gallery[mate]
        assert sum(probe in forms[other] for other in gallery) == 1


def test_the_baselines_find_most_forms(held):
    for measure in baselines(held.gallery).values():
        found = search(measure.all_similarities, *map(measure.represent, (held.probes, held.gallery)), held.mates)
        assert 0.7 < found["rank1"] <= 1 and 0.7 < verify_pairs(measure, held).accuracy <= 1


def test_what_follows_a_word_does_not_change_its_embedding():
    torch.manual_seed(0)
    network = word_network(num_features=16).eval()
    letters = torch.from_numpy(encode(["жить", "жизнь", "жать"]).copy())
    np.testing.assert_allclose(network(letters).detach(), network(letters[:, :16]).detach(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(network(letters)[0], network(letters.flip(1))[0])


def settings_of(root, folder, **changes):
    quick = {
        "data_root": str(root.parent),
        "num_classes": 50,
        "task_options": "unseen=60,pairs=100,probes=3",
        "batch_size": 16,
        "embedding_size": 16,
        "num_epoch": 0,
        "max_update": 12,
        "verify_every": 6,
        "checkpoint_every": 6,
        "output": str(folder),
    }
    return default.generate_config(config_file=SETTINGS, changes={**quick, **changes}, trainer="torch")


def test_a_share_of_the_forms_has_wrong_labels(root, tmp_path):
    settings = settings_of(root, tmp_path)
    right, wrong = (Words(settings, unseen=60, wrong_labels=share).items() for share in (0.0, 0.2))
    np.testing.assert_array_equal(wrong.rows, right.rows)
    assert np.sum(wrong.labels != right.labels) == round(0.2 * len(right))
    assert wrong.labels.max() < 50 and wrong.digest != right.digest


def lexemes_of_forms(lexemes, trained):
    """{form: the positions of its lexemes in ``trained``}."""
    of_form = {}
    for position, lexeme in enumerate(trained.tolist()):
        for word in decode(lexemes.letters[lexemes.starts[lexeme] : lexemes.starts[lexeme + 1]]):
            of_form.setdefault(word, set()).add(position)
    return of_form


def test_a_form_of_several_lexemes_can_be_one_item_with_several_labels(root, tmp_path):
    settings = settings_of(root, tmp_path, num_classes=1000)
    apart, joined = (Words(settings, unseen=60, several_labels=several) for several in (False, True))
    expected = lexemes_of_forms(apart.lexemes, apart.split.trained)
    items = joined.items()
    assert len(items) == len(expected) < len(apart.items())
    words = decode(items.inputs[items.rows])
    assert {word: set(own) - {-1} for word, own in zip(words, items.labels.tolist())} == expected


def test_the_recall_of_the_lexemes_of_ambiguous_forms(root):
    folder = several_labels.ambiguous_set(root)
    lexemes = read_set(folder)
    trained = split_lexemes(lexemes, 0, 20, 0).trained
    chosen = trained[~lexemes.shared[lexemes.starts[trained]]]
    of_form = lexemes_of_forms(lexemes, chosen)
    expected = {word: own for word, own in of_form.items() if len(own) > 1}
    rows, groups = several_labels.ambiguous_forms(lexemes, chosen)
    assert expected and dict(zip(decode(lexemes.letters[rows]), map(set, groups))) == expected

    class Model:
        """Embeds a word between its lexemes, and an ambiguous one between others."""

        def __init__(self, shift):
            self.shift = shift

        def embed(self, letters, batch_size):
            rows = np.zeros((len(letters), len(chosen)), np.float32)
            for row, word in zip(rows, decode(letters)):
                row[(np.array(sorted(of_form[word])) + self.shift * (word in expected)) % len(chosen)] = 1
            return rows

    assert several_labels.recall(Model(0), lexemes, trained) == 1
    assert several_labels.recall(Model(50), lexemes, trained) < 0.1


def test_only_lexemes_that_share_forms_are_in_the_set_of_ambiguous_forms(root):
    every, ambiguous = (read_set(folder) for folder in (root, several_labels.ambiguous_set(root)))

    def lists(lexemes):
        return [
            (decode(lexemes.letters[start:stop]), lexemes.shared[start:stop].tolist())
            for start, stop in zip(lexemes.starts[:-1], lexemes.starts[1:])
        ]

    assert lists(ambiguous) == [(forms, shared) for forms, shared in lists(every) if any(shared)]


def test_they_are_trained_resumed_exported_and_searched_as_faces(root, tmp_path, capfd):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(settings_of(root, whole, sample_ratio=0.3), TorchFramework())
    summary = json.loads((whole / "summary.json").read_text())
    assert list(summary["verification"]) == ["search", "pairs"]
    assert set(summary["baselines"]) == {"levenshtein", "jaro_winkler", "n_grams", "untrained"}
    half = dict(CheckpointFolder(str(whole / "checkpoints"), 2).complete())[6]
    train(settings_of(root, resumed, sample_ratio=0.3, resume=half), TorchFramework())
    for name in ("backbone.pth", "backbone.onnx", "rank_0_softmax_weight.pt"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes(), name

    capfd.readouterr()
    assert call(evaluate, whole, "--root", root, "--classes", 50, "--unseen", 60, "--pairs", 100, "--probes", 3) == 0
    titles, *_, trained = (line.split("|") for line in capfd.readouterr().out.splitlines())
    assert trained[titles.index(" rank-1 ")].startswith(f" {100 * summary['verification']['search']:.2f} ± ")
    assert trained[titles.index(" measured FAR ")] == " 0.00 "  # 50 different pairs show no FAR of 1e-3

    (tmp_path / "words.txt").write_text("жить\nжелезо\nжаба\n", encoding="utf-8")
    model = ["--model", whole, "--reader", READER]
    assert exit_code("embed", tmp_path / "words.txt", *model, "--out", tmp_path / "index") == 0
    assert exit_code("search", "железо", "--index", tmp_path / "index", *model, "--top", "1") == 0
    assert capfd.readouterr().out.splitlines()[-1].split() == ["1", "1.0000", "железо"]
