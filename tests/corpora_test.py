"""Both engines of the tokenizer, and the original algorithm, give the ids of transformers on all of the real data."""

import keras
import pytest

from tests.corpora import VOCABULARIES

pytest.importorskip("tensorflow_text")
pytest.importorskip("transformers")
if keras.backend.backend() != "tensorflow":
    pytest.skip("the tokenizer knows no backend: once is enough", allow_module_level=True)

from tests.tokenizer_engines import mismatches


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_no_text_differs(vocabulary, data):
    counts, different = mismatches(data, vocabulary)
    assert sum(counts.values()) > 900_000
    for (_, engine), texts in different.items():
        # Two lines of Greek capitals in a novel: the original alone has a final sigma; see `characters_test`.
        assert [text for text in texts if engine != "original" or "Σ" not in text] == []
