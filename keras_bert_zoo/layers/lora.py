"""Low-rank adaptation (Hu et al. 2021), where Keras' own needs help."""

from typing import Any

import keras
import numpy as np

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

    def _get_kernel_with_merged_lora(self) -> tuple[Any, Any, Any]:
        if not self.lora_enabled:
            return super()._get_kernel_with_merged_lora()
        # What is saved: the kernel itself, with its scales if it is quantized.
        return self._kernel, getattr(self, "kernel_scale", None), getattr(self, "kernel_zero", None)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.lora_enabled:
            store["lora_kernel_a"], store["lora_kernel_b"] = self.lora_kernel_a, self.lora_kernel_b

    def load_own_variables(self, store: Any) -> None:
        if not self.lora_enabled:
            super().load_own_variables(store)
            return
        kept = "lora_kernel_a" in store
        rank = store["lora_kernel_a"].shape[-1] if kept else self.lora_rank
        # Asked before Keras sets both factors to zero. After a refusal it looks for the kernel elsewhere in the file.
        if rank != self.lora_rank or "0" not in store:
            raise ValueError(
                f"{self.path}: the file must hold its kernel, and LoRA of rank {self.lora_rank} or none. "
                "Received: another rank, or no kernel"
            )
        before = np.array(keras.ops.convert_to_numpy(self.lora_kernel_a))
        super().load_own_variables(store)
        # A file saved before LoRA has no factors: the first keeps its initial values.
        self.lora_kernel_a.assign(store["lora_kernel_a"] if kept else before)
        if kept:
            self.lora_kernel_b.assign(store["lora_kernel_b"])
