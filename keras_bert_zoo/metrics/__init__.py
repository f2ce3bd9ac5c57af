"""Metrics as the leaderboards compute them."""

from keras_bert_zoo.metrics.callback import ValidationScores as ValidationScores
from keras_bert_zoo.metrics.glue import accuracy as accuracy
from keras_bert_zoo.metrics.glue import f1 as f1
from keras_bert_zoo.metrics.glue import glue_scores as glue_scores
from keras_bert_zoo.metrics.glue import matthews as matthews
from keras_bert_zoo.metrics.glue import pearson as pearson
from keras_bert_zoo.metrics.glue import spearman as spearman
from keras_bert_zoo.metrics.spans import entity_scores as entity_scores
from keras_bert_zoo.metrics.spans import entity_scores_by_label as entity_scores_by_label
from keras_bert_zoo.metrics.spans import find_entities as find_entities
from keras_bert_zoo.metrics.spans import to_bio as to_bio
from keras_bert_zoo.metrics.squad import normalize_answer as normalize_answer
from keras_bert_zoo.metrics.squad import squad_v1_scores as squad_v1_scores
from keras_bert_zoo.metrics.squad import squad_v2_scores as squad_v2_scores
