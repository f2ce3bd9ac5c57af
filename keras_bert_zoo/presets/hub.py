"""Directories on the Hugging Face hub, through huggingface_hub and its cache."""

import re
from pathlib import Path

from keras_bert_zoo.checkpoints import huggingface, keras_hub

SCHEME = "hf://"
_SETTINGS = tuple(dict.fromkeys(huggingface.SETTINGS + keras_hub.SETTINGS))
_FILES = (*huggingface.SAFETENSORS_FILES, *keras_hub.FILES)
_ADDRESS = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def download(address: str, load_weights: bool) -> Path:
    """Bring `hf://org/name[@revision]` to this machine and return its directory.

    Raises:
        ValueError: The address has another form, leads nowhere or to what needs a token, or it cannot be reached and is
            not in the cache.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"A hub address must be hf://org/name or hf://org/name@revision. Received: {address!r}")
    from huggingface_hub import constants, errors, snapshot_download

    def fetch(files: tuple[str, ...]) -> Path:
        return Path(snapshot_download(match["repository"], revision=match["revision"], allow_patterns=[*files]))

    try:
        if not load_weights:
            return fetch(_SETTINGS)
        directory = fetch(_SETTINGS + _FILES)
        if any((directory / name).is_file() for name in _FILES):
            return directory
        # Old repositories have PyTorch's file only; most have both, and one is enough to fetch.
        return fetch(_SETTINGS + huggingface.PYTORCH_FILES)
    except errors.HFValidationError:
        raise ValueError(f"A hub address must name a repository and a revision. Received: {address!r}") from None
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"The hub must have the revision. Received: {address!r}, and it has none of this name"
        ) from error
    # What the hub's HTTP library raises in mid-download is an HTTPError, and with some versions no OSError.
    except (errors.HTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):  # The hub does not tell a private repository from a missing one.
            raise ValueError(
                f"{address} is not on the hub, or is private and needs a token: `hf auth login`, or the environment "
                f"variable HF_TOKEN. Received: HTTP {status} from {constants.ENDPOINT}"
            ) from error
        raise ValueError(
            f"{address} could not be reached at {constants.ENDPOINT} and is not in the cache "
            f"{constants.HF_HUB_CACHE} ({type(error).__name__}); a local directory needs no network, "
            "and load_weights=False gives a named preset's architecture without one"
        ) from error
