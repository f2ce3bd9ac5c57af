"""What a BERT is made of: Keras layers, no files, no strings."""

from keras_bert_zoo.layers.attention import SelfAttention as SelfAttention
from keras_bert_zoo.layers.embeddings import BertEmbeddings as BertEmbeddings
from keras_bert_zoo.layers.encoder import EncoderLayer as EncoderLayer
