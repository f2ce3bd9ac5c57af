"""BERT for Keras 3."""

from keras_bert_zoo import data as data
from keras_bert_zoo import metrics as metrics
from keras_bert_zoo import pretraining as pretraining
from keras_bert_zoo.layers import BertEmbeddings as BertEmbeddings
from keras_bert_zoo.layers import EncoderLayer as EncoderLayer
from keras_bert_zoo.layers import MaskedLMHead as MaskedLMHead
from keras_bert_zoo.layers import SelfAttention as SelfAttention
from keras_bert_zoo.layers import VocabularyBias as VocabularyBias
from keras_bert_zoo.models import BertBackbone as BertBackbone
from keras_bert_zoo.models import BertMaskedLM as BertMaskedLM
from keras_bert_zoo.models import BertNextSentencePredictor as BertNextSentencePredictor
from keras_bert_zoo.models import BertPreprocessor as BertPreprocessor
from keras_bert_zoo.models import BertPretrainer as BertPretrainer
from keras_bert_zoo.models import BertQuestionAnswerer as BertQuestionAnswerer
from keras_bert_zoo.models import BertQuestionPreprocessor as BertQuestionPreprocessor
from keras_bert_zoo.models import BertTextClassifier as BertTextClassifier
from keras_bert_zoo.presets import preset_names as preset_names
from keras_bert_zoo.text import BertTokenizer as BertTokenizer
from keras_bert_zoo.text import learn_vocabulary as learn_vocabulary
from keras_bert_zoo.text import read_lines as read_lines
from keras_bert_zoo.text import write_vocabulary as write_vocabulary
from keras_bert_zoo.training import AdamW as AdamW
from keras_bert_zoo.training import Lamb as Lamb
from keras_bert_zoo.training import LossScaleOptimizer as LossScaleOptimizer
from keras_bert_zoo.training import WarmupPolynomialDecay as WarmupPolynomialDecay

__version__ = "0.1.0"
