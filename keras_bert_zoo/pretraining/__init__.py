"""Pre-training: raw text to examples, to batches, to a preset, and what that takes on other machines."""

from keras_bert_zoo.pretraining.batches import PretrainingBatches as PretrainingBatches
from keras_bert_zoo.pretraining.configuration import Run as Run
from keras_bert_zoo.pretraining.estimate import Estimate as Estimate
from keras_bert_zoo.pretraining.estimate import estimate as estimate
from keras_bert_zoo.pretraining.prepare import prepare as prepare
from keras_bert_zoo.pretraining.record_batches import read_records as read_records
from keras_bert_zoo.pretraining.records import write_records as write_records
from keras_bert_zoo.pretraining.run import pretrain as pretrain
from keras_bert_zoo.text.masking import Masking as Masking
