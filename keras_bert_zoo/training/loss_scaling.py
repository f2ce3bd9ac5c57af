"""Loss scaling on several replicas."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` that also works under `tf.distribute` strategies.

    Keras checks only the first replica's gradient for overflow (loss_scale_optimizer.py, `_tf_apply`); an overflow on
    another makes every weight NaN. Here an overflow on any replica skips the step on all.
    """

    def check_finite(self, grads: Any) -> Any:
        finite = super().check_finite(grads)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            if replica := tf.distribute.get_replica_context():
                overflows = replica.all_reduce(tf.distribute.ReduceOp.SUM, ops.cast(~finite, "int32"))
                return overflows == 0
        return finite
