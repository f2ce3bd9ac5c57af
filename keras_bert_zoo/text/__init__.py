"""Strings to integer arrays."""

from keras_bert_zoo.text.tokenizer import BertTokenizer as BertTokenizer
from keras_bert_zoo.text.vocabulary import learn_vocabulary as learn_vocabulary
