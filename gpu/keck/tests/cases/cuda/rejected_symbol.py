# headers: rejected
# detail: undefined symbol: nowhere(at::Tensor)
# A function that is declared and used but defined nowhere.
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>

__global__ void k(float* x) { x[0] = 1.f; }
at::Tensor nowhere(at::Tensor x);
at::Tensor entry(at::Tensor x) {
    k<<<1, 1>>>(x.data_ptr<float>());
    return nowhere(x);
}
"""

ops = load_inline(
    name="nowhere",
    cpp_sources="at::Tensor entry(at::Tensor x);",
    cuda_sources=[SOURCE],
    functions=["entry"],
)
