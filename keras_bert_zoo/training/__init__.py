"""What `fit` needs besides a model."""

from keras_bert_zoo.training.adamw import AdamW as AdamW
from keras_bert_zoo.training.crossentropy import TokenCrossentropy as TokenCrossentropy
from keras_bert_zoo.training.distribution import distribute as distribute
from keras_bert_zoo.training.lamb import Lamb as Lamb
from keras_bert_zoo.training.loss_scaling import LossScaleOptimizer as LossScaleOptimizer
from keras_bert_zoo.training.schedules import WarmupPolynomialDecay as WarmupPolynomialDecay
