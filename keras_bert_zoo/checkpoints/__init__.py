"""Read and write other projects' checkpoint formats as data, without model classes."""

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint as Checkpoint
