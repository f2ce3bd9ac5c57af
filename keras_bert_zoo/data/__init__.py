"""Readers of the official files: plain Python columns, exact errors."""

from keras_bert_zoo.data.conll import ConllSentences as ConllSentences
from keras_bert_zoo.data.conll import read_conll as read_conll
