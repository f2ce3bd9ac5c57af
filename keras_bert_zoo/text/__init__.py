"""Strings to integer arrays."""

from keras_bert_zoo.text.tokenizer import BertTokenizer as BertTokenizer
