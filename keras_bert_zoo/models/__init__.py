"""What a user trains: `keras.Model` subclasses."""

from keras_bert_zoo.models.backbone import BertBackbone as BertBackbone
from keras_bert_zoo.models.choice_preprocessor import BertMultipleChoicePreprocessor as BertMultipleChoicePreprocessor
from keras_bert_zoo.models.features import Features as Features
from keras_bert_zoo.models.features import extract_features as extract_features
from keras_bert_zoo.models.features import write_features as write_features
from keras_bert_zoo.models.masked_lm import BertMaskedLM as BertMaskedLM
from keras_bert_zoo.models.multiple_choice import BertMultipleChoice as BertMultipleChoice
from keras_bert_zoo.models.next_sentence import BertNextSentencePredictor as BertNextSentencePredictor
from keras_bert_zoo.models.preprocessor import BertPreprocessor as BertPreprocessor
from keras_bert_zoo.models.pretrainer import BertPretrainer as BertPretrainer
from keras_bert_zoo.models.text_classifier import BertTextClassifier as BertTextClassifier
from keras_bert_zoo.models.text_embedder import BertTextEmbedder as BertTextEmbedder
from keras_bert_zoo.models.text_regressor import BertTextRegressor as BertTextRegressor
