"""Entities in tags, and their precision, recall and F1 as the shared task's `conlleval` computes them.

A tag is `O`, or a prefix and a label: `B-PER`, `I-PER`, and `E-` and `S-` in files that mark ends. As in conlleval, and
with `E` and `S` as in seqeval, an entity begins at `B` or `S`, after `O`, `E` or `S`, and where the label changes.
These rules read BIO, BIOES and the IOB1 of the official files, and any sequence that a model predicts.
"""

import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence

_PREFIXES = "BIES"


def is_tag(tag: str) -> bool:
    """Whether a string is `O` or a prefix, a hyphen and a label."""
    return tag == "O" or (isinstance(tag, str) and len(tag) > 2 and tag[0] in _PREFIXES and tag[1] == "-")


def find_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities of a sentence's tags in order: label, first word, and the word after the last.

    Args:
        tags: The tags of one sentence.

    Returns:
        For each entity `(label, start, end)`, in words.

    Raises:
        ValueError: A tag is neither `O` nor a prefix with a label.
    """
    entities: list[tuple[str, int, int]] = []
    previous = "O"
    for i, tag in enumerate(tags):
        if not is_tag(tag):
            raise ValueError(
                f"`tags` must be O, or B-, I-, E- or S- with a label. Received: tags[{i}]={reprlib.repr(tag)}"
            )
        if tag != "O":
            if tag[0] in "BS" or previous[0] in "OES" or tag[2:] != previous[2:]:
                entities.append((tag[2:], i, i + 1))
            else:
                label, start, _ = entities[-1]
                entities[-1] = (label, start, i + 1)
        previous = tag
    return entities


def to_bio(tags: Sequence[str]) -> list[str]:
    """Return the same entities with `B-` at the first word of each and `I-` at the others; BIO is unchanged.

    Args:
        tags: The tags of one sentence.

    Returns:
        As many tags.

    Raises:
        ValueError: A tag is invalid.
    """
    converted = ["O"] * len(tags)
    for label, start, end in find_entities(tags):
        converted[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return converted


def entity_scores(true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of whole entities over all sentences; label, start and end must match.

    Args:
        true: The tags of each sentence.
        predicted: The predicted tags of each sentence.

    Returns:
        `precision`, `recall` and `f1` in [0, 1]; 0 where the denominator is 0, as in conlleval.

    Raises:
        ValueError: A tag is invalid, or the numbers of sentences or words differ.

    Example:

    ```python
    entity_scores([["B-PER", "I-PER", "O"]], [["B-PER", "O", "O"]])     # all 0: half an entity is none
    ```
    """
    return _scores(*map(Counter.total, _counted(true, predicted)))


def entity_scores_by_label(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return `entity_scores` for each label separately, in alphabetical order.

    Args:
        true: The tags of each sentence.
        predicted: The predicted tags of each sentence.

    Returns:
        For each label that is true or predicted anywhere its `precision`, `recall` and `f1`.

    Raises:
        ValueError: As in `entity_scores`.
    """
    counts = _counted(true, predicted)
    labels = sorted(set().union(*counts))
    return {label: _scores(*(count[label] for count in counts)) for label in labels}


def _counted(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Count the correct, true and predicted entities of each label."""
    true, predicted = list(true), list(predicted)
    if len(true) != len(predicted):
        raise ValueError(f"`predicted` must have {len(true)} sentences, as `true` has. Received: {len(predicted)}")
    right, wanted, found = Counter[str](), Counter[str](), Counter[str]()
    for i, (there, here) in enumerate(zip(true, predicted, strict=True)):
        if len(there) != len(here):
            raise ValueError(
                f"`predicted` must have a tag for each word, as `true` has. "
                f"Received: predicted[{i}] with {len(here)} tags, true[{i}] with {len(there)}"
            )
        a, b = find_entities(there), find_entities(here)
        wanted.update(label for label, _, _ in a)
        found.update(label for label, _, _ in b)
        right.update(label for label, _, _ in set(a).intersection(b))
    return right, wanted, found


def _scores(right: int, wanted: int, found: int) -> dict[str, float]:
    return {
        "precision": right / found if found else 0.0,
        "recall": right / wanted if wanted else 0.0,
        "f1": 2 * right / (wanted + found) if wanted + found else 0.0,
    }
