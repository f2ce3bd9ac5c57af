"""The paper's pre-training: masked tokens and next sentence together (Devlin et al. 2019, section 3.1)."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_pooler, check_sees_text
from keras_bert_zoo.models.linear_head import linear_head
from keras_bert_zoo.models.masked_lm import MASK_POSITIONS, BertMaskedLM, masked_lm_logits
from keras_bert_zoo.models.preprocessor import BertPreprocessor


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertPretrainer(BertMaskedLM):
    """BERT that predicts masked tokens and whether the second segment follows the first; see `BertMaskedLM`.

    The loss is the sum of both (google-research/bert, run_pretraining.py). In batches of one's own the weights of `mlm`
    must average 1, as described there; those of `nsp` are 1.

    Args:
        backbone: The encoder; it must have a pooler, and not be causal.
        preprocessor: Turns raw text into arrays, for `fill_mask`.

    Returns:
        A dict of `mlm`, float32 logits `[batch, predictions, vocabulary_size]`, and `nsp`, float32 logits `[batch, 2]`;
        class 1 means that the second segment is from elsewhere.

    Example:

    ```python
    kbz.pretraining.prepare(["one.txt", "two.txt"], "books", tokenizer, layout="prose", duplicates=5)
    pretrainer = BertPretrainer(BertBackbone(vocabulary_size=30522, num_layers=2, num_heads=2, hidden_dim=128,
                                             intermediate_dim=512), BertPreprocessor(tokenizer))
    pretrainer.fit(kbz.pretraining.PretrainingBatches("books", batch_size=256), epochs=40)
    pretrainer.save_to_preset("my_bert")
    ```
    """

    head_layers = ("mlm_head", "mlm_bias", "nsp")
    needs_pooler = True

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertPreprocessor | None = None,
        name: str = "bert_pretrainer",
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone, preprocessor, name, **kwargs)

    def build_heads(self, backbone: BertBackbone, inputs: dict[str, Any]) -> dict[str, Any]:
        check_pooler(backbone)
        check_sees_text(backbone)
        mask_positions = inputs[MASK_POSITIONS]
        first = ops.zeros_like(inputs["token_ids"][:, :1])  # For the pooler.
        outputs = backbone(backbone.input, output_positions=ops.concatenate([first, mask_positions], axis=1))
        nsp = linear_head(backbone, 2, "nsp")
        return {
            "mlm": masked_lm_logits(backbone, outputs["sequence_output"][:, 1:]),
            "nsp": nsp(outputs["pooled_output"]),
        }
