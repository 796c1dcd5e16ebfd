// What a custom kernel sees of MLX's own utils.cuh: the types of shapes and strides.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cuda/std/array>
#include <cuda/std/limits>

namespace mlx::core::cu {
using Shape = cuda::std::array<int32_t, 10>;
using Strides = cuda::std::array<int64_t, 10>;
}  // namespace mlx::core::cu
