"""Directories on the Hugging Face hub, there and back, through huggingface_hub and its cache."""

import re
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
    """Bring `hf://org/name[@revision]` to this machine and return its directory.

    Raises:
        ValueError: The address has another form, leads nowhere or to what needs a token, or it cannot be reached and is
            not in the cache.
    """
    match = _parse(address)
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


def upload(address: str, directory: Path, private: bool) -> str:
    """Bring a directory to the repository `hf://org/name`, which is made if it is not there, and return its URL.

    Files that a preset is read from are those of the directory afterwards; the repository's others stay, and so does
    its card where the directory's is one that nobody has edited.

    Raises:
        ValueError: The address has another form or a revision, there is no token or it may not write, a repository that
            is to be private is public, or the hub cannot be reached.
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
    files = _SETTINGS + _FILES
    if not any((directory / name).is_file() for name in _FILES):
        files += huggingface.PYTORCH_FILES
    try:
        if is_written_by_hand(directory / CARD):  # Asked first: one that is refused would leave an empty repository.
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
    # What breaks off in mid-upload is a RuntimeError there.
    except (errors.HTTPError, OSError, RuntimeError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):
            raise ValueError(
                f"The token must be one that may write to {address}. Received: HTTP {status} from {constants.ENDPOINT}"
            ) from error
        raise ValueError(f"{address} could not be written at {constants.ENDPOINT} ({type(error).__name__})") from error
    # A card whose front matter is no YAML, or that the hub refuses; its words are several lines.
    except (ValueError, YAMLError) as error:
        raise ValueError(f"{address} could not be written: {' '.join(str(error).split())}") from error
    return f"{constants.ENDPOINT}/{repository}"
