"""A pytest plugin: the int8 kernel named in NESTREE_INT8_KERNEL on a processor without its instruction."""

import os
from functools import reduce

import numpy as np
from llvmlite import ir

from nestree.nn import int8


def pytest_configure() -> None:
    kernel = {kernel.name: kernel for kernel in int8.KERNELS}[os.environ[int8.KERNEL_VARIABLE]]
    int8.processor_features = lambda: kernel.features

    from nestree.nn.int8 import kernels  # chooses the kernel when it is imported

    def dot_product(code, sums, inputs, weights):
        """As `kernels.dot_product`, in LLVM instructions that every processor has."""
        builder, numbers = code.builder, weights.type.count
        extend = builder.zext if kernel.input_type == np.uint8 else builder.sext
        bits = 8 * np.dtype(kernel.input_type).itemsize
        wide = ir.VectorType(kernels.INT32, numbers)
        inputs = extend(builder.bitcast(inputs, ir.VectorType(ir.IntType(bits), numbers)), wide)
        products = builder.mul(inputs, builder.sext(weights, wide))
        lanes = [range(first, numbers, kernel.group) for first in range(kernel.group)]
        masks = [ir.Constant(ir.VectorType(kernels.INT32, kernel.lanes), [*chosen]) for chosen in lanes]
        return reduce(builder.add, [builder.shuffle_vector(products, products, mask) for mask in masks], sums)

    kernels.dot_product = dot_product
