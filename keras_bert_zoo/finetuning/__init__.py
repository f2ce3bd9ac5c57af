"""Fine-tune on a task's official files, by the paper's recipes: a preset, its scores and its predictions."""

from keras_bert_zoo.finetuning.finetune import evaluate as evaluate
from keras_bert_zoo.finetuning.finetune import finetune as finetune
from keras_bert_zoo.finetuning.predictions import predict as predict
from keras_bert_zoo.finetuning.recipes import RECIPES as RECIPES
from keras_bert_zoo.finetuning.recipes import Recipe as Recipe
from keras_bert_zoo.finetuning.run import Run as Run
