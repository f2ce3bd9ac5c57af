"""What a user trains: `keras.Model` subclasses."""

from keras_bert_zoo.models.backbone import BertBackbone as BertBackbone
from keras_bert_zoo.models.masked_lm import BertMaskedLM as BertMaskedLM
from keras_bert_zoo.models.next_sentence import BertNextSentencePredictor as BertNextSentencePredictor
from keras_bert_zoo.models.preprocessor import BertPreprocessor as BertPreprocessor
from keras_bert_zoo.models.pretrainer import BertPretrainer as BertPretrainer
from keras_bert_zoo.models.question_answerer import BertQuestionAnswerer as BertQuestionAnswerer
from keras_bert_zoo.models.question_preprocessor import BertQuestionPreprocessor as BertQuestionPreprocessor
from keras_bert_zoo.models.text_classifier import BertTextClassifier as BertTextClassifier
