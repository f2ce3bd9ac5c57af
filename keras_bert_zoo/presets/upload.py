"""A preset directory -> the hub."""

import os
from pathlib import Path

from keras_bert_zoo.checkpoints import huggingface
from keras_bert_zoo.presets import hub
from keras_bert_zoo.presets.presets import check_tokenizer, load_preset


def upload_preset(uri: str, preset: str | os.PathLike[str], private: bool = False) -> str:
    """Bring a preset directory to the Hugging Face hub, where `from_preset(uri)` finds it.

    Of the directory go the files of a preset and the model card `README.md`, nothing else; a preset that was in the
    repository before is replaced. The token is the one of `hf auth login` or of the environment variable `HF_TOKEN`.

    Args:
        uri: `"hf://org/name"`; a repository that is not there is made.
        preset: The directory, in Hugging Face's layout, which is ours, or in keras-hub's.
        private: Whether the repository is private; one that is there already must be as asked for, if it is to be
            private.

    Returns:
        The repository's URL.

    Raises:
        ValueError: `preset` is no such directory or cannot be read, there is no token or it may not write, or the hub
            cannot be reached.

    Example:

    ```python
    classifier.save_to_preset("my_classifier")
    kbz.upload_preset("hf://me/my_classifier", "my_classifier", private=True)
    ```
    """
    directory = Path(preset)
    if not huggingface.is_huggingface(directory):
        raise ValueError(f"`preset` must be a directory with a {huggingface.CONFIG}. Received: preset={str(preset)!r}")
    check_tokenizer(load_preset(directory))  # What nobody could read is not for the hub.
    return hub.upload(uri, directory, private)
