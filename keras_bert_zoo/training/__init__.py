"""What `fit` needs beside a model."""

from keras_bert_zoo.training.optimizers import AdamW as AdamW
from keras_bert_zoo.training.schedules import WarmupLinearDecay as WarmupLinearDecay
