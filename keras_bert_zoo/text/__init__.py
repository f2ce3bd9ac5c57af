"""Conversion of text to integer arrays."""

from keras_bert_zoo.text.files import read_lines as read_lines
from keras_bert_zoo.text.files import write_vocabulary as write_vocabulary
from keras_bert_zoo.text.tokenizer import BertTokenizer as BertTokenizer
from keras_bert_zoo.text.vocabulary import learn_vocabulary as learn_vocabulary
