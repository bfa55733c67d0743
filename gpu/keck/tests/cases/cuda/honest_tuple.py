# headers: fast
# Several results, a new scratch tensor of another type, a kernel with inline PTX.
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <cuda_bf16.h>

__global__ void lanes(const __nv_bfloat16* x, int* ids, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    if (i < n) { ids[i] = lane; y[i] = __bfloat162float(x[i]); }
}

std::tuple<at::Tensor, at::Tensor> both(at::Tensor x, double unused, bool flag) {
    TORCH_CHECK(x.dtype() == torch::kBFloat16 && x.dim() >= 1, "got ", x.scalar_type(), " of ", x.sizes());
    auto flat = x.reshape({-1}).contiguous();
    auto ids = torch::full({flat.numel()}, -1, flat.options().dtype(torch::kInt32));
    auto y = at::zeros_like(flat, flat.options().dtype(at::kFloat));
    int n = static_cast<int>(flat.numel());
    lanes<<<(n + 127) / 128, 128>>>(reinterpret_cast<const __nv_bfloat16*>(flat.data_ptr<at::BFloat16>()),
                                    ids.data_ptr<int>(), y.data_ptr<float>(), n);
    return std::make_tuple(ids.view(x.sizes()), y.view(x.sizes()));
}
"""

ops = load_inline(
    name="both",
    cpp_sources="std::tuple<at::Tensor, at::Tensor> both(at::Tensor x, double unused, bool flag);",
    cuda_sources=[SOURCE],
    functions=["both"],
)
