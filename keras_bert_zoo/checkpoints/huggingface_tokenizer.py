"""Read and write the tokenizer files of a BERT directory: `vocab.txt`, `tokenizer_config.json`, `tokenizer.json`."""

import reprlib
from pathlib import Path
from typing import Any

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint
from keras_bert_zoo.files import TOKENIZER_BYTES
from keras_bert_zoo.json_files import check_allowed, read_json, read_json_if_there, typed, write_json
from keras_bert_zoo.text.characters import LONGEST_WORD
from keras_bert_zoo.text.files import read_vocabulary, write_vocabulary
from keras_bert_zoo.text.tokenizer import SPECIAL_TOKENS

VOCABULARY, TOKENIZER_CONFIG, TOKENIZER_JSON = "vocab.txt", "tokenizer_config.json", "tokenizer.json"
# From transformers before 4.34. Since then the config holds the added tokens, and since 5 tokenizer.json does.
_ADDED, _SPECIAL_MAP = "added_tokens.json", "special_tokens_map.json"
FILES = (VOCABULARY, TOKENIZER_CONFIG, TOKENIZER_JSON, _ADDED, _SPECIAL_MAP)

# Fields of tokenizer_config.json and special_tokens_map.json: BERT's special tokens, and others that are never split.
_NAMED = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")

# transformers' class names that mean "as tokenizer.json says".
_AS_JSON_SAYS = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Fields of tokenizer_config.json that would change the ids, with the only values we support.
_REFUSED_FIELDS: dict[str, tuple[Any, ...]] = {
    "tokenizer_class": ("BertTokenizer", "BertTokenizerFast", *_AS_JSON_SAYS, None),
    "word_tokenizer_type": (None,),  # Set by Japanese tokenizers.
    "subword_tokenizer_type": (None,),
    "do_basic_tokenize": (True, None),
    "never_split": ([], None),
    "split_special_tokens": (False, None),
    "truncation_side": ("right", None),
}

# Name in tokenizer_config.json, name in tokenizer.json's normalizer, name in BertTokenizer, default.
_OPTIONS: list[tuple[str, str, str, bool | None]] = [
    ("do_lower_case", "lowercase", "lowercase", True),
    ("strip_accents", "strip_accents", "strip_accents", None),
    ("tokenize_chinese_chars", "handle_chinese_chars", "split_chinese", True),
]

# What tokenizer.json must say to mean BERT's tokenisation. Its `truncation` and `padding` are those of the last call,
# and its `decoder` is ignored.
_MODEL = {
    "type": ("WordPiece", None),  # Early files omit it.
    "unk_token": ("[UNK]",),
    "continuing_subword_prefix": ("##",),
    "max_input_chars_per_word": (LONGEST_WORD,),
}
_SPECIAL = {"single_word": (False,), "lstrip": (False,), "rstrip": (False,)}


def read_tokenizer(
    directory: Path, lowercase: bool = True, class_name: Any = None
) -> tuple[list[str] | None, dict[str, Any], int | None]:
    """Return the vocabulary, `BertTokenizer`'s other arguments and the longest input, or None for what no file states.

    `vocab.txt` and `tokenizer_config.json` take precedence. `tokenizer.json` must have the same vocabulary, and is used
    if one of them is missing. If the class refers to it, it alone gives the options, as in transformers.

    Args:
        directory: Where the files are.
        lowercase: The value if no file states it.
        class_name: The tokenizer's class if `tokenizer_config.json` does not name it.
    """
    path = directory / TOKENIZER_CONFIG
    config = {"tokenizer_class": class_name, **read_json_if_there(path)}
    check_allowed(path, config, _REFUSED_FIELDS)
    vocabulary = read_tokens(directory)
    options: dict[str, Any] = {}
    whole = directory / TOKENIZER_JSON
    as_json_says = whole.is_file() and config["tokenizer_class"] in _AS_JSON_SAYS
    if whole.is_file():
        document = read_json(whole, TOKENIZER_BYTES)
        model = typed(whole, document, "model", dict, {})
        check_allowed(whole, model, {"type": _MODEL["type"]})
        words = _in_order(whole, typed(whole, model, "vocab", dict, {}))
        if vocabulary is None or not path.is_file() or as_json_says:
            options = _options_of_json(whole, document)
        if vocabulary is not None and words not in ([], vocabulary):  # transformers does not delete an old one.
            raise ValueError(f"{whole} must have the tokens of {VOCABULARY}, in its order. Received: a different list")
        vocabulary = words if vocabulary is None else vocabulary
        _check_added(whole, typed(whole, document, "added_tokens", list, []), vocabulary)
    _check_inputs(path, config)
    _check_special(path, config)
    _check_special(directory / _SPECIAL_MAP, read_json_if_there(directory / _SPECIAL_MAP))
    if vocabulary is not None:
        decoder = typed(path, config, "added_tokens_decoder", dict, {})
        _check_added(path, [_entry(token, number) for number, token in decoder.items()], vocabulary)
        added = read_json_if_there(directory / _ADDED)
        entries = [_entry({"content": token}, number) for token, number in added.items()]
        _check_added(directory / _ADDED, entries, vocabulary)
    for theirs, _, ours, default in _OPTIONS:
        default = options.get(ours, lowercase if ours == "lowercase" else default)
        options[ours] = typed(path, {} if as_json_says else config, theirs, bool, default)
    length = typed(path, config, "model_max_length", float, None)
    # transformers writes 1e30 where it knows no limit.
    return vocabulary, options, int(length) if length is not None and abs(length) < 1e9 else None


def read_tokens(directory: Path) -> list[str] | None:
    """Return the tokens of `vocab.txt`, or None if there is none."""
    path = directory / VOCABULARY
    return read_vocabulary(path) if path.is_file() else None


def write_tokenizer(directory: Path, checkpoint: Checkpoint) -> None:
    """Write `vocab.txt` and `tokenizer_config.json` if the checkpoint has a vocabulary."""
    if checkpoint.vocabulary is None:
        return
    write_vocabulary(directory / VOCABULARY, checkpoint.vocabulary)
    fields = {theirs: checkpoint.tokenizer[ours] for theirs, _, ours, _ in _OPTIONS}
    length = checkpoint.sequence_length or checkpoint.backbone["max_sequence_length"]
    fields = {"tokenizer_class": "BertTokenizer", **fields, "model_max_length": length}
    write_json(directory / TOKENIZER_CONFIG, fields)


def _options_of_json(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Return `BertTokenizer`'s other arguments; raise a `ValueError` if the file does not mean BERT's tokenisation."""
    model, normalizer, pre_tokenizer, template = (
        typed(path, document, name, dict, {}) for name in ("model", "normalizer", "pre_tokenizer", "post_processor")
    )
    check_allowed(path, model, _MODEL)
    check_allowed(path, normalizer, {"type": ("BertNormalizer",), "clean_text": (True,)})
    check_allowed(path, pre_tokenizer, {"type": ("BertPreTokenizer",)})
    _check_template(path, template)
    return {ours: typed(path, normalizer, theirs, bool, default) for _, theirs, ours, default in _OPTIONS}


def _in_order(path: Path, ids: dict[str, Any]) -> list[str]:
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids.values()):
        raise ValueError(f"{path}: `vocab` must map tokens to integers. Received: {reprlib.repr(ids)}")
    tokens = sorted(ids, key=lambda token: ids[token])
    wrong = next((token for i, token in enumerate(tokens) if ids[token] != i), None)
    if wrong is not None:
        raise ValueError(
            f"{path}: `vocab` must number its tokens from 0 on. Received: {wrong[:80]!r} as {reprlib.repr(ids[wrong])}"
        )
    return tokens


def _check_added(path: Path, added: list[Any], vocabulary: list[str]) -> None:
    for entry in added:
        token = entry if isinstance(entry, dict) else {}
        name, number = token.get("content"), token.get("id")
        if name not in SPECIAL_TOKENS:
            raise ValueError(f"{path}: `added_tokens` must be among {SPECIAL_TOKENS}. Received: {reprlib.repr(name)}")
        check_allowed(path, token, _SPECIAL)
        if not isinstance(number, int) or not 0 <= number < len(vocabulary) or vocabulary[number] != name:
            received = reprlib.repr(number)
            raise ValueError(f"{path}: `added_tokens` must be in the vocabulary. Received: {name!r} as {received}")


def _check_inputs(path: Path, config: dict[str, Any]) -> None:
    """Require segments among the inputs that transformers passes to the model; without them, all segments are 0."""
    names = config.get("model_input_names")
    if isinstance(names, list) and "input_ids" in names and "token_type_ids" not in names:
        raise ValueError(f"{path}: `model_input_names` must have 'token_type_ids'. Received: {reprlib.repr(names)}")


def _check_special(path: Path, config: dict[str, Any]) -> None:
    for field, expected in _NAMED.items():
        check_allowed(path, {field: _content(config.get(field))}, {field: (expected, None)})
    for field in _MORE_SPECIAL:
        value = config.get(field) or []
        for token in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
            name = _content(token)
            if name not in SPECIAL_TOKENS:
                raise ValueError(f"{path}: `{field}` must be among {SPECIAL_TOKENS}. Received: {reprlib.repr(name)}")


def _content(token: Any) -> Any:
    """Return the text of a token, which may be an object with other fields."""
    return token.get("content") if isinstance(token, dict) else token


def _entry(token: Any, number: Any) -> dict[str, Any]:
    """Return an added token in the form of `tokenizer.json`."""
    return {
        **dict.fromkeys(_SPECIAL, False),
        **(token if isinstance(token, dict) else {"content": token}),
        "id": int(number) if str(number).isdecimal() and len(str(number)) < 10 else number,
    }


def _check_template(path: Path, template: dict[str, Any]) -> None:
    """Require `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, with segment 1 for the second text."""
    if template.get("type") == "BertProcessing":  # Means the same.
        return
    check_allowed(path, template, {"type": ("TemplateProcessing",)})

    def special(token: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": token, "type_id": segment}}

    first = [special("[CLS]", 0), {"Sequence": {"id": "A", "type_id": 0}}, special("[SEP]", 0)]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, special("[SEP]", 1)]
    for name, expected in (("single", first), ("pair", first + second)):
        if template.get(name) != expected:
            received = reprlib.repr(template.get(name))
            raise ValueError(f"{path}: `post_processor` must be BERT's for `{name}`. Received: {received}")
