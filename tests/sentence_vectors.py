"""Write `sentence_vectors.npz`, sentence-transformers' own vectors, with which `text_embedder_test.py` compares ours.

    pip install sentence-transformers
    python -m tests.sentence_vectors MINILM

MINILM is the directory of the fixture `minilm`. Its encoder is opened with their modules only; presets of tiny
embedders with random weights are opened as they are saved. The file was written by sentence-transformers 6.2.0 with
torch 2.13.0 on a CPU.
"""

import sys
import tempfile

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import keras_bert_zoo as kbz
from tests.helpers import TEXTS, WORDS, randomise
from tests.text_embedder_test import CASES, SENTENCES, VECTORS, make


def vectors_of_minilm(directory, pooling, normalize):
    encoder = Transformer(directory, max_seq_length=256)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=pooling), *[Normalize()] * normalize]
    return SentenceTransformer(modules=modules, device="cpu").encode(SENTENCES)


def vectors_of_preset(pooling, normalize):
    with tempfile.TemporaryDirectory() as folder:
        embedder = randomise(make(kbz.BertTokenizer(WORDS), pooling=pooling, normalize=normalize))
        embedder.save_to_preset(folder)
        return SentenceTransformer(folder, device="cpu").encode(TEXTS)


if __name__ == "__main__":
    vectors = {}
    for case in CASES:
        vectors["minilm {} {}".format(*case)] = vectors_of_minilm(sys.argv[1], *case)
        vectors["tiny {} {}".format(*case)] = vectors_of_preset(*case)
    own = SentenceTransformer(sys.argv[1], device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(vectors["minilm mean True"], own, rtol=0, atol=1e-7)  # What its directory says.
    np.savez_compressed(VECTORS, **vectors)
