"""BERT for Keras 3."""

try:
    import keras
except ModuleNotFoundError as error:
    if error.name not in ("tensorflow", "jax", "torch"):
        raise
    raise ImportError(
        f'Keras needs its backend: pip install "keras-bert-zoo[{error.name}]", or set KERAS_BACKEND to another one. '
        f"Received: {error}"
    ) from None

from keras_bert_zoo import data as data
from keras_bert_zoo import finetuning as finetuning
from keras_bert_zoo import metrics as metrics
from keras_bert_zoo import pretraining as pretraining
from keras_bert_zoo import tuning as tuning
from keras_bert_zoo.layers import BertEmbeddings as BertEmbeddings
from keras_bert_zoo.layers import BiLSTM as BiLSTM
from keras_bert_zoo.layers import EncoderLayer as EncoderLayer
from keras_bert_zoo.layers import MaskedLMHead as MaskedLMHead
from keras_bert_zoo.layers import SelfAttention as SelfAttention
from keras_bert_zoo.layers import VocabularyBias as VocabularyBias
from keras_bert_zoo.layers import WeightedSum as WeightedSum
from keras_bert_zoo.models import BertBackbone as BertBackbone
from keras_bert_zoo.models import BertFeatureTokenClassifier as BertFeatureTokenClassifier
from keras_bert_zoo.models import BertMaskedLM as BertMaskedLM
from keras_bert_zoo.models import BertMultipleChoice as BertMultipleChoice
from keras_bert_zoo.models import BertMultipleChoicePreprocessor as BertMultipleChoicePreprocessor
from keras_bert_zoo.models import BertNextSentencePredictor as BertNextSentencePredictor
from keras_bert_zoo.models import BertPreprocessor as BertPreprocessor
from keras_bert_zoo.models import BertPretrainer as BertPretrainer
from keras_bert_zoo.models import BertQuestionAnswerer as BertQuestionAnswerer
from keras_bert_zoo.models import BertQuestionPreprocessor as BertQuestionPreprocessor
from keras_bert_zoo.models import BertTextClassifier as BertTextClassifier
from keras_bert_zoo.models import BertTextEmbedder as BertTextEmbedder
from keras_bert_zoo.models import BertTextRegressor as BertTextRegressor
from keras_bert_zoo.models import BertTokenClassifier as BertTokenClassifier
from keras_bert_zoo.models import BertWordPreprocessor as BertWordPreprocessor
from keras_bert_zoo.models import Features as Features
from keras_bert_zoo.models import ensemble as ensemble
from keras_bert_zoo.models import extract_features as extract_features
from keras_bert_zoo.models import write_features as write_features
from keras_bert_zoo.presets import convert_preset as convert_preset
from keras_bert_zoo.presets import preset_names as preset_names
from keras_bert_zoo.presets import upload_preset as upload_preset
from keras_bert_zoo.text import BertTokenizer as BertTokenizer
from keras_bert_zoo.text import learn_vocabulary as learn_vocabulary
from keras_bert_zoo.text import read_lines as read_lines
from keras_bert_zoo.text import write_vocabulary as write_vocabulary
from keras_bert_zoo.training import AdamW as AdamW
from keras_bert_zoo.training import Lamb as Lamb
from keras_bert_zoo.training import LossScaleOptimizer as LossScaleOptimizer
from keras_bert_zoo.training import WarmupPolynomialDecay as WarmupPolynomialDecay
from keras_bert_zoo.training import distribute as distribute

__version__ = "0.1.0"
