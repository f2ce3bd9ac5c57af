"""Upload a preset directory to the hub."""

import os
from pathlib import Path

from keras_bert_zoo.checkpoints import huggingface
from keras_bert_zoo.presets import hub
from keras_bert_zoo.presets.presets import check_buildable, load_preset


def upload_preset(uri: str, preset: str | os.PathLike[str], private: bool = False) -> str:
    """Upload a preset directory to the Hugging Face Hub, where `from_preset(uri)` finds it.

    Only the preset's files and the model card `README.md` are uploaded; they replace an earlier preset in the
    repository. The token is that of `hf auth login` or of the environment variable `HF_TOKEN`.

    Args:
        uri: `"hf://org/name"`; a missing repository is created.
        preset: The directory, in Hugging Face's layout, which is also ours, or in keras-hub's.
        private: If True, a new repository is private, and an existing one must be private.

    Returns:
        The repository's URL.

    Raises:
        ValueError: `preset` is not such a directory or cannot be read, there is no token or it may not write, or the
            hub cannot be reached.

    Example:

    ```python
    classifier.save_to_preset("my_classifier")
    kbz.upload_preset("hf://me/my_classifier", "my_classifier", private=True)
    ```
    """
    directory = Path(preset)
    if not huggingface.is_huggingface(directory):
        raise ValueError(f"`preset` must be a directory with a {huggingface.CONFIG}. Received: preset={str(preset)!r}")
    check_buildable(load_preset(directory))  # Upload only what can be read back.
    return hub.upload(uri, directory, private)
