# headers: rejected
# detail: cannot_be_anywhere_q7
# A name that no header holds: torch's need not be asked.
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>

__global__ void k(float* x) { x[0] = cannot_be_anywhere_q7(1.f); }
at::Tensor entry(at::Tensor x) {
    k<<<1, 1>>>(x.data_ptr<float>());
    return x;
}
"""

ops = load_inline(
    name="nowhere",
    cpp_sources="at::Tensor entry(at::Tensor x);",
    cuda_sources=[SOURCE],
    functions=["entry"],
)
