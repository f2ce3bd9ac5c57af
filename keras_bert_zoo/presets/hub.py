"""Directories on the Hugging Face hub, through huggingface_hub and its cache."""

import re
from pathlib import Path

from keras_bert_zoo.checkpoints import huggingface

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def download(address: str, load_weights: bool) -> Path:
    """Bring `hf://org/name[@revision]` to this machine and return its directory.

    Raises:
        ValueError: The address has another form, or it cannot be reached and is not in the cache.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"A hub address must be hf://org/name or hf://org/name@revision. Received: {address!r}")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    files = [huggingface.CONFIG, huggingface.VOCABULARY, huggingface.TOKENIZER, huggingface.PRESET]
    if load_weights:
        files.append(huggingface.WEIGHTS)
    try:
        return Path(
            huggingface_hub.snapshot_download(match["repository"], revision=match["revision"], allow_patterns=files)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        cache = huggingface_hub.constants.HF_HUB_CACHE
        raise ValueError(
            f"{address} could not be reached and is not in the cache {cache} ({type(error).__name__}); a local "
            "directory needs no network, and load_weights=False gives a named preset's architecture without one"
        ) from error
