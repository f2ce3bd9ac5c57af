"""Products with weights, in spellings that are faster than what a backend finds by itself."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.parts import plain_part
from keras_bert_zoo.layers.passes import are_weights_kept, is_compiled, kept, makes_outputs_alone
from keras_bert_zoo.layers.rows import from_rows, to_rows
from keras_bert_zoo.on_cpu import on_cpu


def _may_keep(inputs: Any) -> bool:
    """Whether what was made of the weights for a product with `inputs` serves another call."""
    if keras.backend.backend() != "torch" or is_compiled():
        return False  # It is part of a program.
    import torch

    return not (inputs.is_meta or torch.is_grad_enabled())  # A tensor without values or with gradient serves nobody.


def _cast(dense: Any) -> tuple[Any, Any]:
    """Kernel and bias, if there is one, in the dtype of its products."""
    bias = None if dense.bias is None else ops.cast(dense.bias, dense.compute_dtype)
    return ops.cast(dense.kernel, dense.compute_dtype), bias


def _pack(dense: Any) -> tuple[Any, Any]:
    """The same, the kernel as PyTorch's product reads it fastest."""
    from keras_bert_zoo.layers.torch_product import pack

    kernel, bias = _cast(dense)
    return pack(kernel), bias


def add_bias(product: Any, bias: Any) -> Any:
    """`product + bias`, whose gradient for the bias adds up in float32.

    In half precision JAX and TensorFlow's CPU add it up in that, over all tokens: in bfloat16 it stands still at 256.
    """
    wide = ops.cast(bias, keras.backend.result_type(product.dtype, "float32"))
    return product + ops.cast(ops.broadcast_to(wide, ops.shape(product)), product.dtype)


@plain_part
@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class Dense(keras.layers.Dense):
    """Keras' Dense, on PyTorch with the bias as part of the product, with a faster or an exacter gradient elsewhere."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        backend = keras.backend.backend()
        if backend == "torch":
            from keras_bert_zoo.layers.torch_product import product

            inputs = ops.convert_to_tensor(inputs)
            kernel, bias = self._weights(inputs)
            if inputs.dtype == kernel.dtype:  # Else Keras' product finds a type for both.
                return self.activation(product(inputs, kernel, bias))
        elif backend == "tensorflow" and (outputs := self._in_tensorflow(inputs)) is not None:
            return self.activation(outputs)
        elif self._adds_up_in_half(inputs):
            return self.activation(add_bias(ops.matmul(inputs, self.kernel), self.bias))
        return super().call(inputs, training=training)

    def _in_tensorflow(self, inputs: Any) -> Any:
        """The product where Keras' own, or its gradient, is not the fastest; else None."""
        from keras_bert_zoo.layers.tensorflow_product import is_for, product

        if self._casts_for_outputs():
            kernel, bias = self.cast_weights(inputs)
            outputs = ops.matmul(inputs, kernel)
            return outputs if bias is None else ops.add(outputs, bias)
        if self.quantization_mode or self.bias is None or not is_for(inputs, self.compute_dtype):
            return None
        return product(inputs, *_cast(self))

    def _adds_up_in_half(self, inputs: Any) -> bool:
        """Whether the gradient of Keras' sum would lose what `add_bias` keeps."""
        backend = keras.backend.backend()
        is_half = self.compute_dtype in ("float16", "bfloat16") and self.quantization_mode is None
        return is_half and self.bias is not None and (backend == "jax" or (backend == "tensorflow" and on_cpu(inputs)))

    def _casts_for_outputs(self) -> bool:
        """Whether TensorFlow need not cast the weights at each batch; LoRA's factors Keras casts one by one."""
        return makes_outputs_alone() and self.variable_dtype != self.compute_dtype and not self.lora_enabled

    def cast_weights(self, inputs: Any) -> tuple[Any, Any]:
        """Kernel and bias, if there is one, in the dtype of products with `inputs`; `weights_kept` may keep them."""
        if keras.backend.backend() == "tensorflow" and self._casts_for_outputs():
            from keras_bert_zoo.layers.tensorflow_copies import copied

            return copied(self, _cast)
        return kept(self, _cast) if _may_keep(inputs) else _cast(self)

    def _weights(self, inputs: Any) -> tuple[Any, Any]:
        from keras_bert_zoo.layers.torch_product import packs

        packed = are_weights_kept() and _may_keep(inputs) and packs(inputs, self.compute_dtype)
        return kept(self, _pack) if packed else self.cast_weights(inputs)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras leaves out what is not quite a Dense.


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Keras' ReversibleEmbedding, with a faster product with its own table."""

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        backend = keras.backend.backend()
        is_plain = self.tie_weights and self.reverse_dtype is None and self.logit_soft_cap is None
        if reverse and is_plain and backend in ("tensorflow", "torch"):
            inputs, table = ops.convert_to_tensor(inputs), ops.convert_to_tensor(self.embeddings)
            if inputs.dtype == table.dtype and backend == "torch":
                from keras_bert_zoo.layers.torch_product import product

                return product(inputs, table.T)
            if inputs.dtype == table.dtype and backend == "tensorflow":
                import tensorflow as tf

                # Not with a transposed table, whose gradient TensorFlow would transpose: it is as large as the table.
                return from_rows(tf.matmul(to_rows(inputs), table, transpose_b=True), inputs)
        return super().call(inputs, reverse=reverse)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # As in Dense.
