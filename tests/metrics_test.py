"""The leaderboards' scores, compared with scikit-learn, scipy and hand-worked cases, and in the logs of `fit`."""

import warnings
from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import metrics
from keras_bert_zoo.checks import NotANumberError
from tests.helpers import LABELS, TEXTS, TINY, left_to_torch, randomise, short_error

files_only = pytest.mark.skipif(left_to_torch(), reason="knows no backend: once is enough")


# --- GLUE


@files_only
@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_class_scores(classes, seed):
    oracle = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 50)
    logits = rng.normal(size=(50, classes)) + np.eye(classes)[labels]
    guess = logits.argmax(-1)
    assert metrics.accuracy(labels.tolist(), logits) == pytest.approx(oracle.accuracy_score(labels, guess), abs=1e-12)
    expected = oracle.matthews_corrcoef(labels, guess)
    assert metrics.matthews(labels, logits) == metrics.matthews(labels, guess) == pytest.approx(expected, abs=1e-12)
    if classes == 2:
        assert metrics.f1(labels, guess.tolist()) == pytest.approx(oracle.f1_score(labels, guess), abs=1e-12)
        assert metrics.f1(labels, logits) != pytest.approx(metrics.f1(1 - labels, 1 - guess))


@files_only
@pytest.mark.parametrize("labels, guess", [([0, 0], [0, 0]), ([1, 1], [1, 1]), ([0, 1], [0, 0]), ([0, 0], [1, 1])])
def test_class_scores_of_one_class(labels, guess):
    oracle = pytest.importorskip("sklearn.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.f1(labels, guess) == oracle.f1_score(labels, guess)
        assert metrics.matthews(labels, guess) == oracle.matthews_corrcoef(labels, guess)


@files_only
@pytest.mark.parametrize("seed", range(4))
def test_correlations(seed):
    oracle = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 26, 60) / 5  # Many ties, as in STS-B.
    guess = (labels + rng.normal(size=60)).astype("float32").round(1)
    for given in (guess, guess[:, None], guess.tolist()):
        assert metrics.pearson(labels, given) == pytest.approx(oracle.pearsonr(labels, guess)[0], abs=1e-6)
        assert metrics.spearman(labels, given) == pytest.approx(oracle.spearmanr(labels, guess)[0], abs=1e-12)
    assert np.isnan(metrics.pearson([1, 2], [3, 3]))
    assert np.isnan(metrics.spearman([1, 2], [3, 3]))
    missing = [*guess[:-1].tolist(), float("nan")]
    assert np.isnan(metrics.spearman(labels, missing))
    assert np.isnan(oracle.spearmanr(labels, missing)[0])


@files_only
def test_what_is_constant_is_what_scipy_says():
    oracle = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    labels, constant = rng.normal(size=1400), np.full(1400, 2.7)
    assert constant.mean() != 2.7
    nearly = constant.copy()
    nearly[7] = np.nextafter(2.7, 3)
    for guess in (constant, nearly, labels * 1e-200, -labels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = oracle.pearsonr(labels, guess)[0]
        assert metrics.pearson(labels, guess) == pytest.approx(expected, abs=1e-12, nan_ok=True)
        assert np.isnan(expected) == (guess is constant)


@files_only
def test_large_counts_do_not_overflow():
    labels = np.tile([0, 1], 200_000)
    assert metrics.matthews(labels, labels) == pytest.approx(1)
    assert metrics.matthews(labels, 1 - labels) == pytest.approx(-1)


@files_only
def test_the_scores_of_each_task():
    labels, logits = [1, 1, 0, 0], np.array([[0, 1], [1, 0], [0, 1], [1, 0]])
    assert metrics.glue_scores("mrpc", labels, logits) == {"accuracy": 0.5, "f1": 0.5}
    assert metrics.glue_scores("cola", labels, logits) == {"matthews": 0.0}
    names = {task: set(metrics.glue_scores(task, labels, [1, 1, 0, 0])) for task in kbz.data.GLUE}
    both = {"mrpc": {"accuracy", "f1"}, "qqp": {"accuracy", "f1"}, "stsb": {"pearson", "spearman"}}
    alone = {task: {"accuracy"} for task in ("sst2", "mnli", "qnli", "rte", "wnli")}
    assert names == {"cola": {"matthews"}, **both, **alone}


@files_only
@pytest.mark.parametrize(
    "score, labels, predictions, words",
    [
        (metrics.accuracy, [0, 1], [0], "must be equal in number and not empty. Received: 2 labels, 1 predictions"),
        (metrics.accuracy, np.array([], int), np.array([], int), "Received: 0 labels, 0 predictions"),
        (metrics.accuracy, [0.5], [0], "`labels` must be class numbers [examples]. Received: labels.shape=(1,)"),
        (metrics.accuracy, ["a"], [0], "`labels` must be class numbers"),
        (metrics.matthews, [-1], [0], "`labels` must be class numbers"),
        (
            metrics.accuracy,
            [1, 1],
            [[1], [1]],
            "`predictions` must be class numbers [examples]. Received:",
        ),
        (metrics.matthews, [0], [0.3], "`predictions` must be class numbers"),
        (
            partial(metrics.glue_scores, "sst2"),
            [0, 0, 1],
            [[-np.inf, 1.0], [0.0, np.nan], [np.inf, 0.0]],
            "`predictions` must hold numbers. Received: predictions[1]=[0.0, nan]",
        ),
        (metrics.f1, [0], np.array([[np.nan, 0.0]], "float16"), "Received: predictions[0]=[nan, 0.0]"),
        (metrics.f1, [2], [0], "`labels` and `predictions` must be 0 or 1 for F1. Received: 2"),
        (metrics.pearson, [1.0], [[1.0, 2.0]], "`predictions` must be numbers [examples]"),
    ],
)
def test_bad_scores(score, labels, predictions, words):
    with short_error(words):
        score(labels, predictions)


# --- SQuAD


@files_only
@pytest.mark.parametrize(
    "text, expected",
    [
        ("The Cat, a  dog & an owl.", "cat dog owl"),
        ("U.S.A.", "usa"),
        ("a.", ""),  # Punctuation is removed first.
        ("t-he", ""),
        ("Theodore's anthem", "theodores anthem"),
        ("“the” end", "“ ” end"),  # Only ASCII punctuation is removed.
        ("the\u00a0end", "end"),
        ("ÉCOLE", "école"),
        ("the-end", "theend"),
        ("$5", "5"),
    ],
)
def test_normalisation(text, expected):
    assert metrics.normalize_answer(text) == expected


@files_only
@pytest.mark.parametrize(
    "answers, prediction, exact, f1",
    [
        (["Denver Broncos"], "The Denver Broncos!", 100, 100),
        # 2 of the 3 predicted words are the answer's 2: precision 2/3, recall 1.
        (["Denver Broncos"], "Denver Broncos team", 0, 80),
        # The best of several answers counts: "in 1990" gives 2 * 1/2 * 1 / (3/2), "1990" gives 1.
        (["in 1990", "1990"], "1990", 100, 100),
        (["in 1990"], "1990", 0, 200 / 3),
        # A word counts as often as it is in both: 2 of the 3 predicted words, 2 of the answer's 2.
        (["ha ha"], "ha ha ha", 0, 80),
        (["ha ha ha"], "ha", 0, 50),
        (["yes"], "no", 0, 0),
        (["yes"], "", 0, 0),
        (["the"], "a", 100, 0),  # Nothing is left of either: evaluate-v1.1.py counts no word in common.
    ],
)
def test_squad_1(answers, prediction, exact, f1):
    scores = metrics.squad_v1_scores([answers], [prediction])
    assert scores == {"exact_match": exact, "f1": pytest.approx(f1)}
    # The mean over two questions, the second of which is right.
    scores = metrics.squad_v1_scores([answers, ["x"]], [prediction, "x"])
    assert scores == {"exact_match": (exact + 100) / 2, "f1": pytest.approx((f1 + 100) / 2)}


# Five questions: answers, text, null odds. Worked through below.
QUESTIONS = [
    (["Rollo"], "rollo", -4.0),  # exact 1, F1 1
    (["10th century", "the 10th"], "10th", -2.0),  # exact 1 (the second answer), F1 1
    ([], "Normandy", -3.0),  # 1 only above the threshold
    (["France"], "in France", 1.0),  # exact 0, F1 2/3
    ([], "", 2.0),  # 1
]


@files_only
def test_squad_2():
    answers, texts, odds = map(list, zip(*QUESTIONS, strict=True))
    plain = metrics.squad_v2_scores(answers, texts)
    assert plain == {
        "exact": 60, "f1": pytest.approx(100 * (1 + 1 + 0 + 2 / 3 + 1) / 5), "total": 5,
        "HasAns_exact": pytest.approx(200 / 3), "HasAns_f1": pytest.approx(100 * (8 / 3) / 3), "HasAns_total": 3,
        "NoAns_exact": 50, "NoAns_f1": 50, "NoAns_total": 2,
    }  # fmt: skip
    # Only the odds of the last two are above 0, so these are taken to have no answer: France loses its 2/3.
    at_zero = metrics.squad_v2_scores(answers, texts, odds)
    assert (at_zero["exact"], at_zero["f1"]) == (60, 60)
    # The sweep begins at a score of 2, where no text is given. The threshold -4 gives 3, -3 gives 2, and -2 gives 3;
    # 1 gives exact 3 and F1 3 2/3, and 2 gives the same, because its text is "".
    assert (at_zero["best_exact"], at_zero["best_exact_thresh"]) == (60, -4)
    assert (at_zero["best_f1"], at_zero["best_f1_thresh"]) == (pytest.approx(100 * (3 + 2 / 3) / 5), 1)
    # At the sweep's best thresholds, the scores are those that the sweep reports.
    for name in ("exact", "f1"):
        there = metrics.squad_v2_scores(answers, texts, odds, threshold=at_zero[f"best_{name}_thresh"])
        assert there[name] == pytest.approx(at_zero[f"best_{name}"])
    assert metrics.squad_v2_scores(answers, texts, odds, threshold=-5)["exact"] == 40


@files_only
def test_the_best_threshold_is_the_best_of_all():
    rng = np.random.default_rng(0)
    for _ in range(20):
        answers = [["x"] if has else [] for has in rng.integers(0, 2, 12)]
        texts = [["x", "x y", "z", ""][kind] for kind in rng.integers(0, 4, 12)]
        odds = rng.normal(size=12)
        scores = metrics.squad_v2_scores(answers, texts, odds)
        for name in ("exact", "f1"):
            every = [metrics.squad_v2_scores(answers, texts, odds, t)[name] for t in (-9.0, *odds)]
            assert scores[f"best_{name}"] == pytest.approx(max(every))
            there = metrics.squad_v2_scores(answers, texts, odds, scores[f"best_{name}_thresh"])
            assert there[name] == pytest.approx(max(every))


@files_only
def test_rounding_decides_between_equal_thresholds_as_officially():
    """On paper the sweep has 3 points at the second threshold and at the last."""
    answers, texts = [["x"], ["x"], [], ["x"], ["x"], ["x"]], ["x", "x", "y", *["x b c d e"] * 3]
    total = best = 1.0
    for threshold, points in enumerate([1, 1, -1, *[2 * 0.2 / (0.2 + 1)] * 3]):
        total += points
        if total > best:
            best, expected = total, threshold
    assert metrics.squad_v2_scores(answers, texts, range(6))["best_f1_thresh"] == expected


@files_only
def test_among_equal_odds_the_order_is_the_official_one():
    """That of the questions: at each of the two odds the right texts come first, then as many wrong ones."""
    answers, odds = [["x"]] * 40 + [[]] * 40, [0.0, 1.0] * 40
    scores = metrics.squad_v2_scores(answers, ["x"] * 80, odds)
    # Without texts 40 of 80 questions are right. At each of the odds 20 more are, until the other texts spoil as many.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75, 0.0)


@files_only
def test_squad_2_edges():
    # Answers that normalise to nothing are dropped beside others, and count as empty if there are no others.
    assert metrics.squad_v2_scores([["the", "owl"]], ["a"])["exact"] == 0
    assert metrics.squad_v2_scores([["the"]], ["a"])["f1"] == 100
    # If all questions are of one kind, there are no scores for the other.
    assert set(metrics.squad_v2_scores([[]], [""])) == {
        "exact",
        "f1",
        "total",
        "NoAns_exact",
        "NoAns_f1",
        "NoAns_total",
    }
    # The texts are never right: no threshold is better than one that gives none of them.
    scores = metrics.squad_v2_scores([[], ["x"]], ["y", "y"], [0.2, 0.4])
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50, 0.0)
    scores = metrics.squad_v2_scores([[], ["x"]], ["y", "y"], [-7.0, 0.4])
    assert scores["best_exact_thresh"] < -7
    assert metrics.squad_v2_scores([[], ["x"]], ["y", "y"], [0.0, 0.4])["best_exact_thresh"] < 0
    for answer in (kbz.data.Answer("x", 0), ("x", 0), "x"):
        assert metrics.squad_v1_scores([[answer]], ["x"])["f1"] == 100


@files_only
@pytest.mark.parametrize(
    "score, arguments, words",
    [
        (metrics.squad_v1_scores, ([["a"]], []), "must be equal in number and not empty. Received: 1 and 0"),
        (metrics.squad_v1_scores, ([["a"], []], ["a", "b"]), "Received: answers[1]=[]"),
        (metrics.squad_v1_scores, ([["a"]], [None]), "`predictions` must hold strings. Received: predictions[0]=None"),
        (metrics.squad_v1_scores, (["a"], ["a"]), "each a text or (text, start). Received: answers[0]='a'"),
        # The forms of Hugging Face's data set and of the official file.
        (metrics.squad_v2_scores, ([{"text": ["a"], "answer_start": [3]}], ["a"]), "Received: answers[0]={"),
        (metrics.squad_v1_scores, ([[{"text": "a", "answer_start": 0}]], ["a"]), "Received: answers[0]=[{"),
        (metrics.squad_v1_scores, ([("a", 0)], ["a"]), "Received: answers[0]=('a', 0)"),
        (metrics.squad_v2_scores, ([["a"]], ["a"], [1.0, 2.0]), "`null_odds` must be numbers of the shape (1,)"),
        # The official files, whose keys would be compared.
        (metrics.squad_v1_scores, ([["a"]], {"q": "a"}), "`predictions` must be a list, one for each question. Rec"),
        (metrics.squad_v2_scores, ({"q": ["a"]}, ["a"]), "`answers` must be a list, one for each question. Received"),
        (metrics.squad_v2_scores, ([["a"]], ["a"], {"q": 1.0}), "`null_odds` must be a list of numbers. Received: a"),
        (metrics.squad_v2_scores, ([["a"]], ["a"], [0.0], float("nan")), "`threshold` must be a number. Received"),
    ],
)
def test_bad_squad_scores(score, arguments, words):
    with short_error(words):
        score(*arguments)


def test_odds_of_a_model_that_diverged():
    with pytest.raises(NotANumberError, match=r"`null_odds` must hold numbers\. Received: null_odds\[1\]=nan"):
        metrics.squad_v2_scores([["a"], ["b"]], ["a", "b"], [1.0, float("nan")])


@files_only
def test_gold_answers_score_all(data):
    dev = kbz.data.read_squad(data / "squad" / "dev-v1.1-part.json")
    first = [answers[0].text for answers in dev.answers]
    assert metrics.squad_v1_scores(dev.answers, first) == {"exact_match": 100, "f1": 100}
    second = kbz.data.read_squad(data / "squad" / "dev-v2.0-half.json")
    scores = metrics.squad_v2_scores(second.answers, [""] * 6078, -np.arange(6078.0))
    assert (scores["exact"], scores["NoAns_total"]) == (pytest.approx(100 * 3168 / 6078), 3168)


# --- In `fit`


def test_scores_are_in_the_logs_and_change_nothing(tokenizer, tmp_path):
    given = []

    def score(model):
        given.append(model.predict(TEXTS, verbose=0))
        return {"spearman": metrics.spearman(LABELS, given[-1][:, 1])}

    # Without dropout, because on torch even Keras' own validation draws from the generator.
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0)
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    model = randomise(kbz.BertTextClassifier(backbone, num_classes=3, dropout=0.0, preprocessor=preprocessor))
    model.compile(keras.optimizers.SGD(0.1))
    before = model.get_weights()

    def fit(callbacks):
        keras.utils.set_random_seed(3)
        model.set_weights(before)
        return model.fit(TEXTS, LABELS, batch_size=3, epochs=3, verbose=0, callbacks=callbacks).history

    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.weights.h5"), "val_spearman", save_best_only=True, save_weights_only=True, mode="max"
    )
    watched = fit([metrics.ValidationScores(score), best])
    after = model.get_weights()
    assert watched["val_spearman"] == [metrics.spearman(LABELS, logits[:, 1]) for logits in given]
    assert len(set(watched["val_spearman"])) > 1
    assert best.best == max(watched["val_spearman"])
    np.testing.assert_array_equal(given[-1], model.predict(TEXTS, verbose=0))
    assert fit(None)["loss"] == watched["loss"]
    for ours, theirs in zip(after, model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="`score` must be a function of the model"):
        metrics.ValidationScores(5)
