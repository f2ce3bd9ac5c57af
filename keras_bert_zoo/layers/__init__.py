"""The Keras layers of BERT, without files or strings."""

from keras_bert_zoo.layers.attention import SelfAttention as SelfAttention
from keras_bert_zoo.layers.bilstm import BiLSTM as BiLSTM
from keras_bert_zoo.layers.embeddings import BertEmbeddings as BertEmbeddings
from keras_bert_zoo.layers.encoder import EncoderLayer as EncoderLayer
from keras_bert_zoo.layers.heads import MaskedLMHead as MaskedLMHead
from keras_bert_zoo.layers.heads import VocabularyBias as VocabularyBias
from keras_bert_zoo.layers.weighted_sum import WeightedSum as WeightedSum
