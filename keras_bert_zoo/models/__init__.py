"""What a user trains: `keras.Model` subclasses."""

from keras_bert_zoo.models.backbone import BertBackbone as BertBackbone
from keras_bert_zoo.models.text_classifier import BertTextClassifier as BertTextClassifier
from keras_bert_zoo.models.text_classifier import BertTextClassifierPreprocessor as BertTextClassifierPreprocessor
