"""Download from and upload to the Hugging Face Hub, through huggingface_hub and its cache."""

import re
from fnmatch import fnmatch
from pathlib import Path

from keras_bert_zoo.checkpoints import huggingface, keras_hub
from keras_bert_zoo.checkpoints.model_card import CARD, is_written_by_hand

SCHEME = "hf://"
_SETTINGS = tuple(dict.fromkeys(huggingface.SETTINGS + keras_hub.SETTINGS))
_FILES = (*huggingface.SAFETENSORS_FILES, *keras_hub.FILES)
_ADDRESS = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def _parse(address: str) -> re.Match[str]:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"A hub address must be hf://org/name or hf://org/name@revision. Received: {address!r}")
    return match


def download(address: str, load_weights: bool) -> Path:
    """Download `hf://org/name[@revision]` and return its directory.

    Raises:
        ValueError: The address is malformed, does not exist or needs a token, or the hub cannot be reached and the
            files are not in the cache.
    """
    match = _parse(address)
    from huggingface_hub import constants, errors, snapshot_download

    def fetch(files: tuple[str, ...]) -> Path:
        options = {"revision": match["revision"], "allow_patterns": [*files]}
        directory = Path(snapshot_download(match["repository"], **options))
        named = huggingface.named_files(directory, load_weights)
        others = [name for name in named if not any(fnmatch(name, pattern) for pattern in files)]
        if not all((directory / name).is_file() for name in others):
            snapshot_download(match["repository"], **{**options, "allow_patterns": [*files, *others]})
        return directory

    try:
        if not load_weights:
            return fetch(_SETTINGS)
        directory = fetch(_SETTINGS + _FILES)
        if any((directory / name).is_file() for name in _FILES):
            return directory
        # Old repositories have PyTorch's files only. Most have both formats, and one is enough.
        return fetch(_SETTINGS + huggingface.PYTORCH_FILES)
    except errors.HFValidationError:
        raise ValueError(f"A hub address must name a repository and a revision. Received: {address!r}") from None
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"The revision must exist on the hub. Received: {address!r}") from error
    # An interrupted download raises the HTTP library's HTTPError, which in some versions is not an OSError.
    except (errors.HTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):  # A private repository looks like a missing one.
            raise ValueError(
                f"{address} is not on the hub, or is private and needs a token: `hf auth login`, or the environment "
                f"variable HF_TOKEN. Received: HTTP {status} from {constants.ENDPOINT}"
            ) from error
        raise ValueError(
            f"{address} could not be reached at {constants.ENDPOINT} and is not in the cache "
            f"{constants.HF_HUB_CACHE}; a local directory needs no network, and load_weights=False gives a named "
            f"preset's architecture without one. Received: {type(error).__name__}"
        ) from error


def upload(address: str, directory: Path, private: bool) -> str:
    """Upload a directory to the repository `hf://org/name`, which is created if it is missing, and return its URL.

    The directory's preset files replace those of the repository. Its other files, also shards that have names of their
    own, are kept, as is its model card if the directory's is a generated one that nobody has edited.

    Raises:
        ValueError: The address is malformed or has a revision, there is no token or it may not write, `private` is
            True and the repository is public, or the hub cannot be reached.
    """
    match = _parse(address)
    if match["revision"] is not None:
        raise ValueError(f"`uri` must be hf://org/name, without a revision. Received: uri={address!r}")
    from huggingface_hub import HfApi, ModelCard, constants, errors, get_token
    from yaml import YAMLError

    if get_token() is None:
        raise ValueError(
            "An upload needs a token that may write: `hf auth login`, or the environment variable HF_TOKEN. "
            "Received: none"
        )
    api, repository = HfApi(endpoint=constants.ENDPOINT), match["repository"]
    files = [*_SETTINGS, *_FILES, *huggingface.named_files(directory)]
    if not any((directory / name).is_file() for name in _FILES):
        files += huggingface.PYTORCH_FILES
    try:
        if is_written_by_hand(directory / CARD):  # Checked first: a rejected card would leave an empty repository.
            ModelCard.load(directory / CARD).validate()
        api.create_repo(repository, private=private, exist_ok=True)
        info = api.model_info(repository)
        if private and not info.private:
            raise ValueError("`private` needs a new or a private repository. Received: one that is public")
        theirs = any(sibling.rfilename == CARD for sibling in info.siblings or ())
        card = (CARD,) if is_written_by_hand(directory / CARD) or not theirs else ()
        api.upload_folder(
            repo_id=repository,
            folder_path=directory,
            allow_patterns=[*files, *card],
            delete_patterns=[*_SETTINGS, *_FILES, *huggingface.PYTORCH_FILES],
            commit_message="Upload a preset of keras-bert-zoo",
        )
    # An interrupted upload raises a RuntimeError.
    except (errors.HTTPError, OSError, RuntimeError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):
            raise ValueError(
                f"The token must be one that may write to {address}. Received: HTTP {status} from {constants.ENDPOINT}"
            ) from error
        raise ValueError(
            f"{address} could not be written at {constants.ENDPOINT}. Received: {type(error).__name__}"
        ) from error
    # The card's front matter is not YAML, or the hub rejects it with a message of several lines.
    except (ValueError, YAMLError) as error:
        raise ValueError(f"{address} could not be written. Received: {' '.join(str(error).split())}") from error
    return f"{constants.ENDPOINT}/{repository}"
