"""What the leaderboards compute."""

from keras_bert_zoo.metrics.spans import entity_scores as entity_scores
from keras_bert_zoo.metrics.spans import entity_scores_by_label as entity_scores_by_label
from keras_bert_zoo.metrics.spans import find_entities as find_entities
from keras_bert_zoo.metrics.spans import to_bio as to_bio
