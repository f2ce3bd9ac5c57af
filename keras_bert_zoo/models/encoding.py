"""A backbone's forward pass, block by block."""

from typing import Any

from keras_bert_zoo.layers.positions import at_positions


def encode(
    backbone: Any,
    inputs: dict[str, Any],
    output_positions: Any = None,
    training: bool | None = None,
    attention_scores: bool = False,
) -> tuple[list[Any], list[Any]]:
    """Return the embeddings and block outputs, and each block's attention probabilities, None if not requested.

    `output_positions` apply to the last block's output.
    """
    hidden = backbone.embeddings(inputs["token_ids"], inputs["segment_ids"], training=training)
    states, scores = [hidden], []
    last = backbone.encoder_layers[-1]
    # A causal model predicts nearly every token: fused attention saves more than the other positions cost.
    chosen_after = last.causal and not isinstance(output_positions, int) and output_positions is not None
    for layer in backbone.encoder_layers:
        options: dict[str, Any] = {"training": training}
        if layer is last and not chosen_after:
            options["output_positions"] = output_positions
        if attention_scores:
            options["return_attention_scores"] = True
        outputs = layer(hidden, inputs["padding_mask"], **options)
        hidden, score = outputs if attention_scores else (outputs, None)
        states.append(hidden)
        scores.append(score)
    if chosen_after:
        states[-1] = at_positions(hidden, output_positions)
    return states, scores


def outputs_of(backbone: Any, hidden: Any) -> dict[str, Any]:
    """Return the backbone's outputs, given its last block's."""
    outputs = {"sequence_output": hidden}
    if backbone.pooler_layer is not None:
        outputs["pooled_output"] = backbone.pooler_layer(hidden[:, 0])
    return outputs
