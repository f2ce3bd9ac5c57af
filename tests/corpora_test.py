"""Both engines of the tokenizer, and the original algorithm, give the ids of transformers on all of the shared data."""

import keras
import pytest

from tests.corpora import VOCABULARIES

pytest.importorskip("tensorflow_text")
pytest.importorskip("transformers")
if keras.backend.backend() != "tensorflow":
    pytest.skip("the tokenizer knows no backend: once is enough", allow_module_level=True)

from tests.tokenizer_engines import ENGINES, mismatches


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_no_text_differs(vocabulary, data):
    counts, different = mismatches(data, vocabulary)
    assert sum(counts.values()) > 900_000
    for engine in ENGINES:
        assert {corpus: texts[:3] for (corpus, name), texts in different.items() if name == engine and texts} == {}
