"""Presets as data, by name, directory or hub address."""

from keras_bert_zoo.presets.convert import LAYOUTS as LAYOUTS
from keras_bert_zoo.presets.convert import ConversionReport as ConversionReport
from keras_bert_zoo.presets.convert import convert_preset as convert_preset
from keras_bert_zoo.presets.presets import load_preset as load_preset
from keras_bert_zoo.presets.presets import preset_names as preset_names
from keras_bert_zoo.presets.presets import save_preset as save_preset
from keras_bert_zoo.presets.upload import upload_preset as upload_preset
