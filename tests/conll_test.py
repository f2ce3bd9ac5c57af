"""The columns of CoNLL, and the entities in tags, against hand-worked cases and the shared task's own figures."""

from collections import Counter

import numpy as np
import pytest

from keras_bert_zoo.data import read_conll
from keras_bert_zoo.data.conll import begins_conll
from keras_bert_zoo.metrics import entity_scores, entity_scores_by_label, find_entities, to_bio
from tests.helpers import left_to_torch, short_error

if left_to_torch():
    pytest.skip("files and tags know no backend: once is enough", allow_module_level=True)

datasets = pytest.importorskip("datasets")

FILE = """\
-DOCSTART- -X- O O

U.N. NNP I-NP I-ORG
official NN I-NP O
Ekeus NNP I-NP I-PER
Smith NNP I-NP B-PER

Peter NNP I-NP I-PER
-DOCSTART- -X- O O
\t
1996-08-22\tCD\tI-NP\tO
EU NNP I-NP I-ORG
German JJ I-NP I-MISC
"""


def test_reads_words_tags_and_documents(tmp_path):
    path = tmp_path / "train"
    path.write_text(FILE)
    sentences = read_conll(path)
    assert sentences.words == [["U.N.", "official", "Ekeus", "Smith"], ["Peter"], ["1996-08-22", "EU", "German"]]
    assert sentences.tags == [["B-ORG", "O", "B-PER", "B-PER"], ["B-PER"], ["O", "B-ORG", "B-MISC"]]
    assert sentences.documents == [0, 0, 1]
    words, tags = sentences.by_document()
    assert words == [sentences.words[:2], sentences.words[2:]]
    assert tags == [sentences.tags[:2], sentences.tags[2:]]
    path.write_text(FILE.removeprefix("-DOCSTART- -X- O O\n"))  # Nothing says that the first two belong together.
    assert read_conll(path).documents == [0, 1, 2]
    path.write_text("\ufeffÅsa B-PER\r\nNilsson\u00a0x I-PER\r\n\r\nhej O")  # A no-break space separates no columns.
    assert read_conll(path) == ([["Åsa", "Nilsson\u00a0x"], ["hej"]], [["B-PER", "I-PER"], ["O"]], [0, 1])


@pytest.mark.parametrize(
    "text, is_conll",
    [
        (FILE, True),
        ("U.N. NNP I-NP I-ORG\nofficial NN I-NP O\nEkeus NNP I-NP O", True),
        ("film O\nParis B-LOC", True),
        ("film O", True),
        ("Peter NNP B-NP B-PER\nBlackburn NNP I-NP I-PER", True),
        ("EU NNP B-NP B-PER\nrejects VBZ O\nGerman JJ B-NP O\ncall NN I-NP O", True),  # For `read_conll` to refuse.
        ("-DOCSTART-\nfilm", True),
        ("my blood type is O", False),  # Texts.
        ("I take vitamin B-12\nWe drove on I-95", False),
        ("I take B-12\nI drove on I-95\nMy type is O", False),
        ("film\nParis", False),
        ("", False),
    ],
)
def test_tells_columns_from_texts(text, is_conll):
    assert begins_conll(text.splitlines()) is is_conll


def test_reads_columns():
    """Columns come as a mapping, or as a Hugging Face data set, which holds numbers and their names."""
    names = {"tokens": [["EU", "rejects"], [], ["Peter"]], "ner_tags": [["B-ORG", "O"], [], ["I-PER"]]}
    expected = ([["EU", "rejects"], [], ["Peter"]], [["B-ORG", "O"], [], ["B-PER"]], [0, 1, 2])
    assert read_conll(names) == expected
    labels = datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-ORG"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(labels)})
    numbered = datasets.Dataset.from_dict({**names, "ner_tags": [[3, 0], [], [2]]}, features=features)
    assert read_conll(numbered) == expected
    assert read_conll(numbered.with_format("numpy")) == expected
    assert read_conll({name: [np.array(row) for row in rows] for name, rows in names.items()}) == expected
    withheld = datasets.Dataset.from_dict({"tokens": [["EU"]], "ner_tags": [[-1]]}, features=features)
    with pytest.raises(ValueError, match=r"Row 0: .* Received: .*-1"):
        read_conll(withheld)
    assert read_conll(withheld, labels=False) == ([["EU"]], [[]], [0])
    with pytest.raises(ValueError, match=r"Row 0: `tokens` must be a list\. Received: 'George went'"):
        read_conll({"tokens": ["George went"]}, labels=False)


@pytest.mark.parametrize(
    "columns, words",
    [
        ({"tokens": [["a"]]}, r"the columns must include \['tokens', 'ner_tags'\]. Received: \['tokens'\]"),
        (
            {"tokens": [["a"], ["b"]], "ner_tags": [["O"], ["PER"]]},
            "Row 1: `ner_tags` must be O, or B-, I-, E- or S- with a label",
        ),
        ({"tokens": [["a", "b"]], "ner_tags": [["O"]]}, "Row 0 must have a tag for each token. Received: 2 .*, 1 tags"),
        ({"tokens": [["a"]], "ner_tags": [None]}, r"Row 0: `ner_tags` must be a list\. Received: None"),
        ({"tokens": [["a"]], "ner_tags": ["O"]}, r"Row 0: `ner_tags` must be a list\. Received: 'O'"),
        ({"tokens": [{"a": 1}], "ner_tags": [["O"]]}, r"Row 0: `tokens` must be a list\. Received: {'a': 1}"),
        ({"tokens": [[5]], "ner_tags": [["O"]]}, r"Row 0: each of `tokens` must be a string\. Received: 5"),
        (
            {"tokens": [["a\ud800"]], "ner_tags": [["O"]]},
            "Row 0: each of `tokens` must be valid Unicode. .* at character 1",
        ),
        ({"tokens": [["a"]], "ner_tags": [["B-\ud800"]]}, "Row 0: each of `ner_tags` must be valid Unicode"),
        ({"tokens": [[]], "ner_tags": [[]]}, "The data set must hold a sentence. Received: none"),
    ],
)
def test_says_which_row_is_wrong(columns, words):
    with pytest.raises(ValueError, match=words):
        read_conll(columns)


@pytest.mark.parametrize(
    "text, words",
    [
        ("a b O\nc O\n", ", line 2 must have 3 columns, as before. Received: 'c O'"),
        ("a\n", ", line 1 must have a word and its tag. Received: 'a'"),
        ("a O\n\nb PER\n", ", line 3 must end in O, or B-, I-, E- or S- with a label. Received: 'b PER'"),
        ("a I-\n", ", line 1 must end in O"),
        ("\n-DOCSTART- O\n", " must hold a sentence. Received: none"),
        (b"a O\n\xff O\n", " must be UTF-8 text (invalid start byte in line 2)"),
        (f"a O\n{'b' * 2**20} O\n", " must have lines shorter than 1 MiB. Received: a longer line 2"),
        (None, " must be a text file"),
    ],
)
def test_says_which_line_is_wrong(text, words, tmp_path):
    path = tmp_path / "train"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with short_error(f"{path}{words}"):
        read_conll(path)


def test_takes_the_labels_that_are_known_and_no_others(tmp_path):
    path = tmp_path / "train"
    path.write_text(FILE)
    tags = ["O", "B-MISC", "B-ORG", "B-PER"]  # I- of the same labels is also known.
    assert read_conll(path, class_names=tags) == read_conll(path)
    number = FILE.splitlines().index("German JJ I-NP I-MISC") + 1
    with pytest.raises(
        ValueError, match=rf"line {number}: a tag must be O, or .* one of ORG, PER\. Received: 'I-MISC'"
    ):
        read_conll(path, class_names=["O", "B-ORG", "B-PER"])
    assert read_conll(path, labels=False, class_names=["O"]).words == read_conll(path).words
    with pytest.raises(ValueError, match=r"one of PER\. Received: 'B-AAAAAAAAAA\.\.\.AAAAAAAAAAAAA'$"):
        read_conll({"tokens": [["a"]], "ner_tags": [["B-" + "A" * 10**5]]}, class_names=["B-PER"])
    with pytest.raises(ValueError, match=r"Row 1: a tag must be O, or .* one of PER\. Received: 'B-LOC'"):
        read_conll({"tokens": [["a"], ["b", "c"]], "ner_tags": [["I-PER"], ["O", "B-LOC"]]}, class_names=["B-PER"])


@pytest.mark.parametrize(
    "part, documents, tokens, entities",
    [
        ("eng.train", 946, 203621, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
        ("eng.testa", 216, 51362, {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}),
    ],
)
def test_official_files(part, documents, tokens, entities, data):
    """Tables 1 and 2 of Tjong Kim Sang and De Meulder (2003)."""
    sentences = read_conll(data / "conll2003" / part)
    assert len(sentences.by_document()[0]) == documents
    assert sum(map(len, sentences.words)) == tokens
    found = Counter(label for tags in sentences.tags for label, _, _ in find_entities(tags))
    assert found == entities


@pytest.mark.parametrize(
    "tags, entities",
    [
        ("O O", []),
        ("B-A I-A O B-A", [("A", 0, 2), ("A", 3, 4)]),
        ("I-A I-A O I-A", [("A", 0, 2), ("A", 3, 4)]),  # IOB1
        ("I-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
        ("B-A I-B I-B", [("A", 0, 1), ("B", 1, 3)]),
        ("B-A E-A I-A S-B S-B", [("A", 0, 2), ("A", 2, 3), ("B", 3, 4), ("B", 4, 5)]),
        ("O E-A O", [("A", 1, 2)]),
        ("S-A I-A", [("A", 0, 1), ("A", 1, 2)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
    ],
)
def test_entities_begin_and_end_as_in_conlleval(tags, entities):
    tags = tags.split()
    assert find_entities(tags) == entities
    bio = to_bio(tags)
    assert find_entities(bio) == entities
    assert to_bio(bio) == bio
    assert all(bio[start][0] == "B" and set(bio[start + 1 : end]) <= {f"I-{x}"} for x, start, end in entities)


def test_scores_are_of_whole_entities():
    """By hand: 5 true, 4 found, 2 right (LOC in the first sentence, PER in the second)."""
    true = ["B-PER I-PER O B-LOC", "B-ORG B-ORG O B-PER"]
    found = ["B-PER O O I-LOC", "B-ORG I-ORG O B-PER"]
    true, found = ([row.split() for row in rows] for rows in (true, found))
    assert entity_scores(true, found) == {"precision": 2 / 4, "recall": 2 / 5, "f1": 4 / 9}
    assert entity_scores_by_label(true, found) == {
        "LOC": {"precision": 1, "recall": 1, "f1": 1},
        "ORG": {"precision": 0, "recall": 0, "f1": 0},
        "PER": {"precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2},
    }
    assert entity_scores([["O"]], [["O"]]) == {"precision": 0, "recall": 0, "f1": 0}
    # The same entity in two sentences is two.
    assert entity_scores([["B-A"], ["B-A"]], [["B-A"], ["O"]])["recall"] == 0.5


@pytest.mark.parametrize(
    "true, predicted, words",
    [
        ([["O"]], [], "`predicted` must have 1 sentences, as `true` has. Received: 0"),
        ([["O"]], [["O", "O"]], "Received: predicted[0] with 2 tags, true[0] with 1"),
        ([["O"]], [["PER"]], "Received: tags[0]='PER'"),
        ([["O"]], [["P" * 10**5]], "Received: tags[0]='PPPPPPPPPPPP...PPPPPPPPPPPPP'"),
    ],
)
def test_bad_tags(true, predicted, words):
    with short_error(words):
        entity_scores(true, predicted)


def conlleval(true, found):
    """Count as the shared task's conlleval.pl does, for B, I and O: it compares places, not lists of entities."""

    def ends(before, now):
        return before[0] != "O" and (now[0] in "BO" or before[1:] != now[1:])

    def starts(before, now):
        return now[0] != "O" and (now[0] == "B" or before[0] == "O" or before[1:] != now[1:])

    correct = expected = guessed = 0
    inside = False
    last = ("O", "O")
    for pair in (pair for sentence in zip(true, found, strict=True) for pair in [*zip(*sentence, strict=True), "OO"]):
        both = list(zip(last, pair, strict=True))
        if inside:
            over = [ends(*each) for each in both]
            if all(over):
                inside, correct = False, correct + 1
            elif any(over) or pair[0][1:] != pair[1][1:]:
                inside = False
        begun = [starts(*each) for each in both]
        if all(begun) and pair[0][1:] == pair[1][1:]:
            inside = True
        expected, guessed, last = expected + begun[0], guessed + begun[1], pair
    return {"precision": correct / guessed, "recall": correct / expected, "f1": 2 * correct / (guessed + expected)}


def test_scores_are_those_of_conlleval():
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]
    rng = np.random.default_rng(0)
    for _ in range(50):
        true = [[tags[i] for i in rng.integers(5, size=length)] for length in rng.integers(1, 9, 20)]
        found = [[tag if rng.random() < 0.7 else tags[rng.integers(5)] for tag in sentence] for sentence in true]
        assert entity_scores(true, found) == pytest.approx(conlleval(true, found), rel=1e-12)
