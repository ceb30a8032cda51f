"""Metrics of embeddings: values of other libraries, ties, ignored items, intervals, and any number of ranks.

The expected digits are from pytorch-metric-learning 2.9.0 (AccuracyCalculator with DotProductSimilarity, k = 239),
open-metric-learning 4.0.0 (calc_retrieval_metrics), scikit-learn 1.9.1 (KNeighborsClassifier.predict_proba, roc_curve,
LogisticRegression without penalty, normalized_mutual_info_score), and the formulas of wespeaker's score_metrics.py and
score_norm.py, on the arrays of `drawn`, with NumPy 1.26.4 and PyTorch 2.14.1. Their scores are exact in float32, and
no genuine score equals an impostor score.
"""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from partial_fc.evaluation import items as items_module
from partial_fc.evaluation.calibration import calibrate
from partial_fc.evaluation.items import ALONE, EmbeddedItems, Workers
from partial_fc.evaluation.metrics import METRICS, build_metrics, evaluate
from partial_fc.evaluation.metrics.clusters import MutualInformation, spherical_kmeans
from partial_fc.evaluation.metrics.transferred import Transferred
from partial_fc.evaluation.pair_counts import count_pairs
from partial_fc.evaluation.roc import Roc
from partial_fc.evaluation.score_norm import CohortStatistics
from partial_fc.utils.config import SettingsError, parse_options
from partial_fc.utils.distances import normalized
from paths import ROOT

CLASSES, PER_CLASS, E = 40, 6, 8
LABELS = np.repeat(np.arange(CLASSES), PER_CLASS)
PAGE = (ROOT / "docs" / "evaluate.md").read_text()
IS_QUERY = np.arange(len(LABELS)) % 3 == 0
CLOSED_SET = [name for name in METRICS if name != "open_set"]


def drawn():
    """Returns embeddings (240, E), cameras (240,), and a cohort (500, E)."""
    random = np.random.Generator(np.random.PCG64(80))
    centers = random.integers(-700, 701, (CLASSES, E))[LABELS]
    embeddings = (centers + random.integers(-700, 701, (len(LABELS), E))).astype(np.float32)
    cameras = random.integers(0, 3, len(LABELS))
    return embeddings, cameras, random.integers(-1400, 1401, (500, E)).astype(np.float32)


EMBEDDINGS, CAMERAS, COHORT = drawn()


def values(items, *names, **options):
    return {name: figure.value for name, figure in evaluate(items, build_metrics(names, options), draws=0).items()}


def all_pairs(items):
    scores = items.embeddings.astype(np.float64) @ items.embeddings.T.astype(np.float64)
    upper = np.triu_indices(len(scores), 1)
    return scores[upper], (items.classes[:, None] == items.classes)[upper]


def test_searches_agree_with_other_libraries():
    found = values(EmbeddedItems(EMBEDDINGS, LABELS), "recall", "precision", "r_precision", "map", "knn", neighbors=7)
    expected = {
        "recall_at_1": 74 / 240, "recall_at_5": 147 / 240, "recall_at_10": 179 / 240,
        "precision_at_1": 74 / 240, "precision_at_5": 0.2125, "precision_at_10": 0.3316667,
        "r_precision": 0.2125, "map": 0.25740372594441796, "map_at_r": 0.14909722222222221, "knn_accuracy": 55 / 240,
    }  # fmt: skip
    assert found == pytest.approx(expected, abs=1e-7)


def test_the_metric_of_the_page_agrees_with_pytorch_metric_learning(tmp_path, monkeypatch):
    ((name, program),) = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    found = values(EmbeddedItems(EMBEDDINGS, LABELS), f"{name}:ReciprocalRank")
    assert found == pytest.approx({"mrr": 0.4544961750507355})


def test_the_program_of_the_page_prints_figures(tmp_path, monkeypatch, capsys):
    (program,) = re.findall(r"```python\n(import numpy.*?)```", PAGE, re.DOTALL)
    np.save(tmp_path / "embeddings.npy", EMBEDDINGS)
    np.save(tmp_path / "labels.npy", LABELS)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert re.fullmatch(
        r"recall_at_1 0.3083 \[.*\nrecall_at_5 .*\neer 0.2400 \[.*\n", capsys.readouterr().out, re.DOTALL
    )


def test_the_page_lists_all_metrics_with_their_options():
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*?)\|$", PAGE, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(METRICS)
    for name, cell in rows:
        options = parse_options("options", ",".join(re.findall(r"`(\w+=.*?)`", cell)))
        assert vars(*build_metrics([name], options)) == vars(*build_metrics([name], {})), name


def test_figures_at_large_ranks_have_names_of_their_own():
    (metric,) = build_metrics(["recall"], {"ranks": (10**6, 10**6 + 1)})
    assert metric.figures == ["recall_at_1000000", "recall_at_1000001"]


def test_re_identification_agrees_with_open_metric_learning():
    items = EmbeddedItems(EMBEDDINGS, LABELS, IS_QUERY, CAMERAS)
    found = values(items, "cmc", "precision", "map")
    assert [found[f"cmc_at_{k}"] for k in (1, 5, 10)] == pytest.approx([19 / 80, 43 / 80, 51 / 80])
    assert [found[f"precision_at_{k}"] for k in (1, 5, 10)] == pytest.approx([0.2375, 0.2917, 0.4021], abs=5e-5)
    assert found["map"] == pytest.approx(0.2580, abs=5e-5)


def test_pair_metrics_agree_with_wespeaker_and_scikit_learn():
    items = EmbeddedItems(EMBEDDINGS, LABELS)
    found = values(items, "eer", "min_dcf", "tar", fars=(1e-2, 1e-3, 1e-4))
    assert found["eer"] == pytest.approx(0.24) and found["min_dcf"] == pytest.approx(0.9951923076923114)
    tars = [found[f"tar_at_far_{far}"] for far in ("0_01", "0_001", "0_0001")]
    assert tars == pytest.approx([103 / 600, 31 / 600, 5 / 600])
    assert values(items, "min_dcf", p_target=0.05)["min_dcf"] == pytest.approx(0.9635327635327628)
    assert values(items, "min_dcf", p_target=0.2, c_miss=10)["min_dcf"] == pytest.approx(0.58005698005698)


def test_given_pairs_have_the_rates_of_the_same_pairs_without_a_list():
    pairs = np.stack(np.triu_indices(len(LABELS), 1), axis=1)
    listed, all_of_them = (
        values(EmbeddedItems(EMBEDDINGS, LABELS, pairs=each), "eer", "min_dcf", "tar") for each in (pairs, None)
    )
    assert listed == all_of_them


def test_normalized_scores_agree_with_wespeaker():
    unit, cohort = normalized(EMBEDDINGS), normalized(COHORT)
    statistics = CohortStatistics.measure(unit, cohort, 100)
    scores = unit @ unit.T
    statistics.normalize(scores, np.arange(240)[:, None], np.arange(240))
    found = scores[[0, 0, 17], [1, 239, 42]]
    assert found == pytest.approx([-0.9034744827, -0.5868506781, -4.3986697608], abs=1e-4)
    figures = values(EmbeddedItems(unit, LABELS, cohort=statistics), "eer")
    assert figures["eer"] == pytest.approx(0.21955128, abs=2e-4)  # float32 rounds some scores into another order
    assert values(EmbeddedItems(unit, LABELS), "eer")["eer"] == pytest.approx(0.21666667, abs=2e-4)


@pytest.mark.parametrize("p_target, expected", [(0.5, (17.048996130, -1.109312697)), (0.01, (14.4791615, -0.9265556))])
def test_calibration_agrees_with_scikit_learn(p_target, expected):
    scores, same = all_pairs(EmbeddedItems(EMBEDDINGS, LABELS))
    for kinds in (same, same.astype(int)):
        assert calibrate(lambda kinds=kinds: [(scores / 1e7, kinds)], p_target) == pytest.approx(expected, rel=1e-6)


def test_scores_that_cannot_be_calibrated_are_refused():
    scores = np.array([0.1, 0.2, 0.8, 0.9])
    for same in ([False, False, True, True], [True, True, False, False], [True, False, True, False]):
        with pytest.raises(ValueError, match="cannot be calibrated"):
            calibrate(lambda same=same: [(scores, np.array(same))], 0.5)
    for p_target, pairs, message in (
        (0.5, [(scores, np.ones(4, bool))], "needs pairs of one class"),
        (0.5, [], "needs pairs of one class"),
        (0.5, [(scores * np.nan, np.arange(4) > 1)], "finite scores"),
        (1, [(scores, np.arange(4) > 1)], "p_target is 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrate(lambda pairs=pairs: pairs, p_target)


def test_open_set_identification():
    in_gallery = ~IS_QUERY & (LABELS < 30)
    labels = np.where(IS_QUERY | in_gallery, LABELS, -1)
    found = values(EmbeddedItems(EMBEDDINGS, labels, IS_QUERY), "open_set", fpirs=(0.01, 0.1, 0.3))
    assert list(found.values()) == pytest.approx([55 / 60, 49 / 60, 47 / 60])
    with pytest.raises(ValueError, match="remove some classes from it"):
        values(EmbeddedItems(EMBEDDINGS, LABELS, IS_QUERY), "open_set")


def test_mutual_information():
    classes, clusters = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2]), np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 0])
    cells, counts = np.unique(classes * 3 + clusters, return_counts=True)
    table = np.stack([*divmod(cells, 3), counts], axis=1)
    statistic, units = MutualInformation().statistic(table)
    assert statistic(None) == pytest.approx([0.4427012833460501]) and units == 3
    far_apart = normalized(np.eye(5, 8, dtype=np.float32)[LABELS % 5] + EMBEDDINGS / 1e5)
    assert values(EmbeddedItems(far_apart, LABELS % 5), "nmi")["nmi"] == pytest.approx(1)
    copies = np.ones((6, 1), np.float32)
    assert len(spherical_kmeans(copies, 4, lambda count: None)) == 6  # fewer different embeddings than clusters


def tied():
    """Returns four items of two classes that all have the same score."""
    return EmbeddedItems(np.ones((4, 2), np.float32), np.array([0, 0, 1, 1]))


def test_equal_scores_count_against_the_query():
    found = values(tied(), "recall", "r_precision", "map", "knn", ranks=(1, 2, 3), neighbors=1)
    assert found == {
        "recall_at_1": 0, "recall_at_2": 0, "recall_at_3": 1, "r_precision": 0, "map": pytest.approx(1 / 3),
        "map_at_r": 0, "knn_accuracy": 0,
    }  # fmt: skip


def test_equal_scores_of_pairs_are_accepted_together():
    assert values(tied(), "eer", "min_dcf", "tar", fars=0.5) == {"eer": 0.5, "min_dcf": 1, "tar_at_far_0_5": 0}


def test_the_order_of_items_does_not_matter():
    embeddings = np.sign(EMBEDDINGS)  # many equal scores
    order = np.random.Generator(np.random.PCG64(3)).permutation(len(LABELS))
    names = [name for name in CLOSED_SET if name != "nmi"]
    found = values(EmbeddedItems(embeddings, LABELS), *names)
    assert values(EmbeddedItems(embeddings[order], LABELS[order]), *names) == pytest.approx(found, abs=1e-12)


def test_neighbors_at_the_last_place_count_against_the_query():
    # The query 0 has a neighbor of its class, and three equally near ones for the second place.
    embeddings = np.array([[1, 0, 0], [4, 0, 0], [2, 1, 0], [2, 0, 1], [2, 0, 0], [0, 0, 0]], np.float32)
    is_query = np.arange(6) == 0
    items = EmbeddedItems(embeddings, np.array([7, 7, 8, 7, 9, 9]), is_query)
    expected = {1: 1, 2: 0, 3: 0, 4: 1}  # votes of class 7 and of the best other class: 1-0, 1-1, 1-1, 2-1
    assert {k: values(items, "knn", neighbors=k)["knn_accuracy"] for k in expected} == expected


def test_any_arrays_of_numbers_give_the_figures_of_float32():
    rows = EMBEDDINGS / np.linalg.norm(EMBEDDINGS.astype(float), axis=1, keepdims=True)
    names = ["eer", "min_dcf", "tar", "knn", "nmi"]

    def figures(embeddings, labels=LABELS):
        return evaluate(EmbeddedItems(embeddings, labels), build_metrics(names, {}), draws=5)

    expected = figures(rows.astype(np.float32))
    assert figures(rows) == figures(rows.tolist(), LABELS.tolist()) == figures(np.asfortranarray(rows)) == expected
    assert figures(rows, LABELS.astype(np.uint64) + np.uint64(2**63)) == expected
    assert figures(EMBEDDINGS.astype(np.int64)) == figures(EMBEDDINGS.astype(np.float16)) == figures(EMBEDDINGS)


def test_items_without_a_label_are_left_out():
    padded = np.concatenate([EMBEDDINGS, EMBEDDINGS[:50]])
    labels = np.concatenate([LABELS, np.full(50, -1)])
    assert values(EmbeddedItems(padded, labels), *CLOSED_SET) == values(EmbeddedItems(EMBEDDINGS, LABELS), *CLOSED_SET)


def on_threads(size, work):
    """Runs ``work(workers)`` as ranks in threads; returns the results of all ranks."""
    barrier, shares = threading.Barrier(size, timeout=60), [None] * size

    def start(rank):
        def together(share):
            shares[rank] = share()
            barrier.wait()
            found = list(shares)
            barrier.wait()
            return found

        return work(Workers(rank, size, together))

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(start, range(size)))


@pytest.mark.parametrize("size", [2, 3])
def test_any_number_of_ranks_gives_the_same_bits(size, monkeypatch):
    monkeypatch.setattr(items_module, "SCORES", 1)
    monkeypatch.setattr(items_module, "LEAST_ROWS", 50)  # 5 blocks; the third of three ranks has one of them
    monkeypatch.setattr(items_module, "COLUMNS", 100)
    unit = normalized(EMBEDDINGS)
    items = EmbeddedItems(unit, LABELS)
    others = EmbeddedItems(unit[::-1].copy(), LABELS)

    def measured(workers=ALONE):
        metrics = build_metrics(CLOSED_SET, {})
        return evaluate(items, [*metrics, Transferred(others, metrics[-3:], workers)], workers, draws=20)

    one = measured()
    assert on_threads(size, measured) == [one] * size
    monkeypatch.undo()
    whole = measured()  # in one block
    assert {name: figure.value for name, figure in whole.items()} == pytest.approx(
        {name: figure.value for name, figure in one.items()}, abs=1e-4
    )


def test_thresholds_of_another_set():
    first, second = (EmbeddedItems(normalized(EMBEDDINGS[half]), LABELS[half]) for half in (LABELS < 20, LABELS >= 20))
    metrics = build_metrics(["eer", "min_dcf", "tar"], {"fars": 0.01, "p_target": 0.05})
    transferred = Transferred(first, metrics)
    found = {name: figure.value for name, figure in evaluate(second, [transferred], draws=0).items()}
    scores, same = all_pairs(second)
    for name, threshold in transferred.thresholds.items():
        assert found[f"frr_{name}"] == pytest.approx(np.mean(scores[same] < threshold), abs=1e-3)
        assert found[f"far_{name}"] == pytest.approx(np.mean(scores[~same] >= threshold), abs=1e-3)
    own, own_same = all_pairs(first)
    assert np.mean(own[~own_same] >= transferred.thresholds["tar_at_far_0_01"]) <= 0.01
    log_odds = transferred.calibration.scale * scores + transferred.calibration.offset
    wrong = np.mean(log_odds[same] < np.log(19)), np.mean(log_odds[~same] >= np.log(19))
    assert found["act_dcf"] == pytest.approx(wrong[0] + 19 * wrong[1], abs=1e-2)


def test_rates_with_equal_scores_are_on_the_exact_curve():
    items = EmbeddedItems(np.sign(EMBEDDINGS), LABELS)
    scores, same = all_pairs(items)
    curve, roc = count_pairs(items, ALONE).curve(), Roc(scores, same)
    for far in np.unique(curve.false_accepts):
        reached = curve.false_rejects[curve.false_accepts <= far].min()
        assert 1 - reached == pytest.approx(roc.at_most(far).tar)


def test_intervals_are_as_wide_as_figures_of_other_sets_differ():
    names, figures, labels = ("recall", "map", "eer", "tar"), [], np.repeat(np.arange(60), 5)
    random = np.random.Generator(np.random.PCG64(5))
    for _ in range(30):
        centers = random.standard_normal((60, 8))[labels]
        embeddings = normalized((centers + random.standard_normal(centers.shape)).astype(np.float32))
        metrics = build_metrics(names, {"ranks": 1, "fars": 0.01})
        figures.append(evaluate(EmbeddedItems(embeddings, labels), metrics, draws=60))
    for name in figures[0]:
        value, low, high = np.array([found[name] for found in figures]).T
        assert (low <= value).all() and (value <= high).all()
        # The standard error of the deviation of 30 figures is 13 %.
        assert 0.6 < np.mean(high - low) / (2 * 1.96 * value.std()) < 1.5, name


def test_two_classes_have_no_interval_and_draws_repeat():
    for count, has_interval in ((12, False), (18, True)):  # all draws of two classes with impostor pairs are equal
        found = evaluate(EmbeddedItems(EMBEDDINGS[:count], LABELS[:count]), build_metrics(["recall", "eer"], {}))
        assert {not np.isnan(figure.low) for figure in found.values()} == {has_interval}
    items = EmbeddedItems(EMBEDDINGS, LABELS)
    assert len({str(evaluate(items, build_metrics(["map", "eer"], {}), draws=30)) for _ in range(2)}) == 1


@pytest.mark.parametrize(
    "names, options, message",
    [
        (["recal"], {}, "recal.*recall"),
        (["recall"], {"ranks": 0}, "ranks is 0"),
        (["recall"], {"ranks": (1.5,)}, "whole"),
        (["recall"], {"ranks": ()}, "one or several"),
        (["tar"], {"fars": (0.1, 2)}, "at most 1"),
        (["tar"], {"fars": (0.1, 0.1 + 1e-9)}, "several different"),  # both are tar_at_far_0_1
        (["recall"], {"fars": 0.1}, "fars is an option of none"),
        (["min_dcf"], {"p_target": 1}, "below 1"),
        (["min_dcf"], {"p_target": (0.1, 0.2)}, "must be of type float"),
    ],
)
def test_wrong_metrics_are_refused(names, options, message):
    with pytest.raises(SettingsError, match=message):
        build_metrics(names, options)


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"labels": LABELS[1:]}, r"labels has shape \(239,\)"),
        ({"cameras": CAMERAS[1:]}, r"cameras has shape"),
        ({"is_query": np.ones(240, bool)}, "240 queries and 0 gallery items"),
        ({"pairs": np.array([[0, 240]])}, "not from 0 to 239"),
        ({"pairs": np.array([0, 1])}, "two items per row"),
        ({"embeddings": EMBEDDINGS * np.float32(np.nan)}, "240 embeddings are not finite, the first is item 0"),
        ({"embeddings": EMBEDDINGS * 1e300}, "not finite"),
        ({"embeddings": EMBEDDINGS[:, 0]}, r"embeddings has shape \(240,\)"),
        ({"labels": LABELS / 2}, "labels holds float64, expected integers"),
        ({"labels": LABELS.astype(str)}, "labels holds <U"),
        ({"is_query": LABELS % 3}, "queries has values other than 0 and 1"),
        ({"pairs": np.array([[0.0, 1.0]])}, "pairs holds float64"),
        ({"cohort": CohortStatistics(np.zeros(239), np.ones(239))}, "statistics of 239 items for 240"),
    ],
)
def test_wrong_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        EmbeddedItems(**{"embeddings": EMBEDDINGS, "labels": LABELS, **columns})


def test_wrong_cohorts_are_refused():
    for cohort, top, message in (
        (COHORT[:0], 300, "two or more items of the cohort, got 0"),
        (COHORT, 1, "got 1"),
        (COHORT[[5, 5, 5]], 300, "equal or not finite"),
        (COHORT * np.float32(np.nan), 300, "equal or not finite"),
        (COHORT[:, 1:], 300, "dimension 7 instead of 8"),
    ):
        with pytest.raises(ValueError, match=message):
            CohortStatistics.measure(EMBEDDINGS, cohort, top)


def test_sets_without_mates_or_pairs_are_refused():
    for name, labels, message in (
        ("recall", np.arange(240), "no query has an item of its class"),
        ("knn", np.arange(240), "no query has an item of its class"),
        ("eer", np.arange(240), "no pairs of one class"),
        ("eer", np.zeros(240, int), "no pairs of different classes"),
    ):
        with pytest.raises(ValueError, match=message):
            values(EmbeddedItems(EMBEDDINGS, labels), name)
