"""Other people's checkpoint formats, in and out, as data: no model class is known here."""

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint as Checkpoint
