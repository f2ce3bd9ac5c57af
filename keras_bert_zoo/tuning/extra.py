"""Import Keras Tuner, or say what to install."""

try:
    import keras_tuner as keras_tuner
except ImportError as error:
    raise ValueError(f'`tuning` needs Keras Tuner: pip install "keras-bert-zoo[tuner]". Received: {error}') from None
