"""Matrix products with weights, in forms that are faster than the backends' own."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.activations import get_activation
from keras_bert_zoo.layers.parts import call_part, is_plain, plain_part
from keras_bert_zoo.layers.passes import are_weights_kept, kept, makes_outputs_alone, torch_compiles
from keras_bert_zoo.layers.rows import from_rows, to_rows
from keras_bert_zoo.on_cpu import on_cpu


def _may_keep(inputs: Any) -> bool:
    """Whether the weights prepared for a product with `inputs` can be reused in another call."""
    if keras.backend.backend() != "torch" or torch_compiles():
        return False  # The prepared weights are part of a compiled program.
    import torch

    return not (inputs.is_meta or torch.is_grad_enabled())  # Not if they have no values or need a gradient.


def _cast(dense: Any) -> tuple[Any, Any]:
    """Return the kernel and the bias, if any, in the compute dtype."""
    bias = None if dense.bias is None else ops.cast(dense.bias, dense.compute_dtype)
    return ops.cast(dense.kernel, dense.compute_dtype), bias


def _pack(dense: Any) -> tuple[Any, Any]:
    """Like `_cast`, with the kernel in the layout that PyTorch's matmul reads fastest."""
    from keras_bert_zoo.layers.torch_product import pack

    kernel, bias = _cast(dense)
    return pack(kernel), bias


def activated(owner: Any, dense: Any, inputs: Any, activation: str, training: bool | None) -> Any:
    """Return the activation of that name of a part's product, within `owner.call`, for `[rows, m]`."""
    if activation == "gelu" and keras.backend.backend() == "tensorflow" and is_plain(owner, dense, inputs):
        from keras_bert_zoo.layers.tensorflow_onednn import product_with_gelu
        from keras_bert_zoo.layers.tensorflow_product import adds_gelu

        if adds_gelu(inputs):
            return product_with_gelu(inputs, *dense.cast_weights(inputs))
    # TensorFlow's graph rewriter joins the GELU of plain steps with a float product, but not with one of int8.
    apart = training or dense.quantization_mode is not None
    return get_activation(activation, apart)(call_part(owner, dense, inputs))


def _in_int8(layer: Any, inputs: Any, kernel: Any, scale: Any, bias: Any) -> Any:
    """Return a quantized layer's product with its int8 kernel on a CPU, or None where the backend's own is taken."""
    if keras.backend.backend() == "torch":
        from keras_bert_zoo.layers.torch_int8 import int8_product, takes
    elif keras.backend.backend() == "tensorflow":
        from keras_bert_zoo.layers.tensorflow_int8 import int8_product, takes
    else:
        return None
    inputs, quantizer = ops.convert_to_tensor(inputs), layer.inputs_quantizer
    # Keras' default, also once it was read from a file.
    is_default = type(quantizer) is keras.quantizers.AbsMaxQuantizer and tuple(quantizer.value_range) == (-127, 127)
    if not is_default or not takes(inputs):
        return None
    kernel, scale = ops.convert_to_tensor(kernel), ops.convert_to_tensor(scale)
    bias = None if bias is None else ops.convert_to_tensor(bias)
    return from_rows(int8_product(to_rows(inputs), kernel, scale, bias, quantizer.epsilon), inputs)


def matmul(left: Any, right: Any, rounded: bool = True) -> Any:
    """Return `left @ right`, in the form in which a CPU computes half precision fastest.

    If not `rounded`, it is float32 where the sums are float32 anyway.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        from keras_bert_zoo.layers.torch_product import widens

        if widens(left):
            sums = left.float() @ right.float()
            return sums.to(left.dtype) if rounded else sums
    if backend == "jax":
        from keras_bert_zoo.layers.jax_product import product, takes

        left, right = ops.convert_to_tensor(left), ops.convert_to_tensor(right)
        if takes(left, right):
            return product(left, right, rounded)
    return ops.matmul(left, right)


def add_bias(product: Any, bias: Any) -> Any:
    """Return `product + bias`, with the bias gradient summed in float32.

    JAX, and TensorFlow on a CPU, would sum it over all tokens in half precision: a bfloat16 sum of ones stops at 256.
    """
    wide = ops.cast(bias, keras.backend.result_type(product.dtype, "float32"))
    return product + ops.cast(ops.broadcast_to(wide, ops.shape(product)), product.dtype)


@plain_part
@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class Dense(keras.layers.Dense):
    """Keras' Dense, with the bias fused into the matmul on PyTorch and a faster or more exact gradient elsewhere.

    Attributes:
        is_activated: Whether an activation of the outputs follows at once, with which TensorFlow's graph rewriter joins
            the product if it knows it (the exact GELU is known).
    """

    is_activated = False

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        backend = keras.backend.backend()
        if backend == "torch":
            from keras_bert_zoo.layers.torch_product import product

            inputs = ops.convert_to_tensor(inputs)
            kernel, bias = self._weights(inputs)
            if inputs.dtype == kernel.dtype:  # Else Keras promotes both to one dtype.
                return self.activation(product(inputs, kernel, bias))
        elif backend == "tensorflow" and (outputs := self._in_tensorflow(inputs)) is not None:
            return self.activation(outputs)
        elif self._adds_up_in_half(inputs):
            return self.activation(add_bias(matmul(inputs, self.kernel), self.bias))
        return super().call(inputs, training=training)

    def _in_tensorflow(self, inputs: Any) -> Any:
        """Return the product where Keras' own, or its gradient, is not the fastest; else None."""
        from keras_bert_zoo.layers.tensorflow_product import adds_bias, is_for, product, product_with_bias

        if self._casts_for_outputs():
            kernel, bias = self.cast_weights(inputs)
            if bias is not None and adds_bias(inputs, self.is_activated):
                return product_with_bias(inputs, kernel, bias)
            outputs = ops.matmul(inputs, kernel)
            return outputs if bias is None else ops.add(outputs, bias)
        if self.quantization_mode or self.bias is None or not is_for(inputs, self.compute_dtype):
            return None
        return product(inputs, *_cast(self), self.is_activated)

    def _adds_up_in_half(self, inputs: Any) -> bool:
        """Whether Keras' bias gradient would lose digits that `add_bias` keeps."""
        backend = keras.backend.backend()
        is_half = self.compute_dtype in ("float16", "bfloat16") and self.quantization_mode is None
        return is_half and self.bias is not None and (backend == "jax" or (backend == "tensorflow" and on_cpu(inputs)))

    def _casts_for_outputs(self) -> bool:
        """Whether TensorFlow can cast the weights once per pass; not with LoRA: Keras casts its factors singly."""
        return makes_outputs_alone() and self.variable_dtype != self.compute_dtype and not self.lora_enabled

    def cast_weights(self, inputs: Any) -> tuple[Any, Any]:
        """Return the kernel and the bias, if any, in the compute dtype; `weights_kept` may cache them."""
        if keras.backend.backend() == "tensorflow" and self._casts_for_outputs():
            from keras_bert_zoo.layers.tensorflow_copies import copied

            return copied(self, _cast)
        return kept(self, _cast) if _may_keep(inputs) else _cast(self)

    def _weights(self, inputs: Any) -> tuple[Any, Any]:
        from keras_bert_zoo.layers.torch_product import packs

        packed = are_weights_kept() and _may_keep(inputs) and packs(inputs, self.compute_dtype)
        return kept(self, _pack) if packed else self.cast_weights(inputs)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras' check excludes subclasses.

    def quantized_call(self, inputs: Any, training: bool | None = None) -> Any:
        if self.quantization_mode == "int8" and not self.lora_enabled:
            outputs = _in_int8(self, inputs, self._kernel, self.kernel_scale, self.bias)
            if outputs is not None:
                return self.activation(outputs)
        return super().quantized_call(inputs, training=training)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Keras' ReversibleEmbedding, with a faster matmul for `reverse=True`."""

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        backend = keras.backend.backend()
        is_plain = self.tie_weights and self.reverse_dtype is None and self.logit_soft_cap is None
        if reverse and is_plain and backend in ("tensorflow", "torch", "jax"):
            inputs, table = ops.convert_to_tensor(inputs), ops.convert_to_tensor(self.embeddings)
            if inputs.dtype == table.dtype and backend == "torch":
                from keras_bert_zoo.layers.torch_product import product

                return product(inputs, table.T)
            if inputs.dtype == table.dtype and backend == "tensorflow":
                import tensorflow as tf

                # With a transposed table TensorFlow would transpose the gradient, which is as large as the table.
                return from_rows(tf.matmul(to_rows(inputs), table, transpose_b=True), inputs)
            if backend == "jax":
                return matmul(inputs, table.T)
        return super().call(inputs, reverse=reverse)

    def quantized_call(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse and self.quantization_mode == "int8" and self.tie_weights and self.logit_soft_cap is None:
            logits = _in_int8(self, inputs, ops.transpose(self._embeddings), self.embeddings_scale, None)
            if logits is not None:
                return logits
        return super().quantized_call(inputs, reverse=reverse)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # As in Dense.
