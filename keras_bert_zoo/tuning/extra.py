"""Import Keras Tuner, or say what to install."""

try:
    import keras_tuner as keras_tuner
except ImportError as error:
    needed = "Keras Tuner" if error.name in ("keras_tuner", None) else f"{error.name}, for Keras Tuner"
    raise ValueError(f'`tuning` needs {needed}: pip install "keras-bert-zoo[tuner]". Received: {error}') from None
