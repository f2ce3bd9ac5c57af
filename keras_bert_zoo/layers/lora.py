"""Low-rank adaptation (Hu et al. 2021), where Keras' own needs help."""

from typing import Any

import keras

from keras_bert_zoo.layers.dense import Dense
from keras_bert_zoo.layers.parts import plain_part


@plain_part
@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class AdaptableDense(Dense):
    """A Dense that saves LoRA's two factors separately from the kernel.

    Keras 3.15 saves their product in the kernel and reads both factors back as zeros. Both gradients are then zero, so
    training could not continue.
    """

    lora_enabled: bool

    def save_own_variables(self, store: Any) -> None:
        enabled = self.lora_enabled
        self.lora_enabled = False  # Else Keras would add their product to the kernel.
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = enabled
        if enabled:
            store["lora_kernel_a"], store["lora_kernel_b"] = self.lora_kernel_a, self.lora_kernel_b

    def load_own_variables(self, store: Any) -> None:
        before = keras.ops.convert_to_numpy(self.lora_kernel_a) if self.lora_enabled else None
        super().load_own_variables(store)
        if self.lora_enabled:  # A file saved before LoRA has no factors: the first keeps its initial values.
            kept = "lora_kernel_a" in store
            self.lora_kernel_a.assign(store["lora_kernel_a"] if kept else before)
            if kept:
                self.lora_kernel_b.assign(store["lora_kernel_b"])
