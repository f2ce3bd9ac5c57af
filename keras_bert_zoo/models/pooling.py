"""Pooling of a text's token vectors into one vector."""

from typing import Any

from keras import ops

from keras_bert_zoo.layers import BiLSTM
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_pooler

_POOLINGS = ("first", "last", "bilstm")


def pool(backbone: BertBackbone, pooling: str) -> Any:
    """Return the pooler's output for each text, `[batch, hidden_dim]`.

    Args:
        backbone: The encoder; it must have a pooler.
        pooling: Input of the pooler: `"first"`, the vector of `[CLS]`; `"last"`, that of the last token; `"bilstm"`,
            the final states of a fresh BiLSTM over all tokens, each direction half as wide as the backbone.
    """
    check_pooler(backbone)
    if pooling not in _POOLINGS:
        raise ValueError(f"`pooling` must be one of {_POOLINGS}. Received: pooling={pooling!r}")
    if pooling == "first":
        if backbone.architecture["causal"]:
            raise ValueError(
                '`pooling` must be "last" or "bilstm" over a causal backbone, whose [CLS] sees nothing but itself. '
                f"Received: pooling={pooling!r}"
            )
        return backbone(backbone.input, output_positions=0)["pooled_output"]
    hidden, mask = backbone(backbone.input)["sequence_output"], backbone.input["padding_mask"]
    pooler = backbone.pooler_layer
    assert pooler is not None
    if pooling == "last":
        return pooler(_last(hidden, mask))
    width = backbone.architecture["hidden_dim"]
    if width % 2:
        raise ValueError(f'`pooling="bilstm"` needs an even hidden_dim. Received: hidden_dim={width}')
    read = BiLSTM(width // 2, dtype=backbone.embeddings.dtype_policy, name="bilstm")(hidden, mask)
    there, back = _last(read, mask)[:, : width // 2], read[:, 0, width // 2 :]
    return pooler(ops.concatenate([there, back], axis=-1))


def _last(hidden: Any, padding_mask: Any) -> Any:
    """Return the vector of each row's last token, by a product as in `at_positions`; the mask may have gaps."""
    so_far = ops.cumsum(padding_mask, axis=1)
    none_follows = ops.equal(so_far, ops.max(so_far, axis=1, keepdims=True))
    is_last = ops.cast(padding_mask, hidden.dtype) * ops.cast(none_follows, hidden.dtype)
    return ops.squeeze(ops.matmul(is_last[:, None], hidden), axis=1)
