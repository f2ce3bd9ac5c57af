"""Shares of languages in a mixture."""

from collections.abc import Mapping

# google-research/bert, multilingual.md.
_SMOOTHING = 0.7


def smoothed_passes(sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the passes over each language, one on average, that give it its smoothed share of the text.

    Shares are raised to the power of 0.7 and normalised again: rare languages are seen more often than they occur, and
    frequent ones less.

    Args:
        sizes: Amount of text of each language, above 0.

    Example:

    ```python
    smoothed_passes({"en": 900, "is": 100})   # {'en': 0.915, 'is': 1.768}: 82 % and 18 %, where it was 90 % and 10 %
    ```
    """
    total = sum(sizes.values())
    shares = {name: size / total for name, size in sizes.items()}
    smoothed = {name: share**_SMOOTHING for name, share in shares.items()}
    return {name: smoothed[name] / sum(smoothed.values()) / share for name, share in shares.items()}
