"""Readers of official files: they return plain Python columns and raise precise errors."""

from keras_bert_zoo.data.columns import Columns as Columns
from keras_bert_zoo.data.conll import ConllSentences as ConllSentences
from keras_bert_zoo.data.conll import read_conll as read_conll
from keras_bert_zoo.data.glue import GLUE as GLUE
from keras_bert_zoo.data.glue import read_glue as read_glue
from keras_bert_zoo.data.glue import write_submission as write_submission
from keras_bert_zoo.data.plain import read_texts as read_texts
from keras_bert_zoo.data.squad import Answer as Answer
from keras_bert_zoo.data.squad import SquadColumns as SquadColumns
from keras_bert_zoo.data.squad import read_squad as read_squad
from keras_bert_zoo.data.squad_files import write_squad_predictions as write_squad_predictions
from keras_bert_zoo.data.swag import read_dream as read_dream
from keras_bert_zoo.data.swag import read_swag as read_swag
from keras_bert_zoo.data.xnli import read_xnli as read_xnli
