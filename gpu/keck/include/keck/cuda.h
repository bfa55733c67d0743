// Streams, guards and launch checks. Stands in for ATen/cuda/CUDAContext.h and the headers below
// c10/cuda/. A candidate can ask for the current stream and device and set the device, no more.
#pragma once

#include <cuda_runtime_api.h>

#include "keck/make.h"

namespace c10 {
namespace cuda {

// Exported by libc10_cuda.
void c10_cuda_check_implementation(int32_t error, const char* file, const char* function,
                                   uint32_t line, bool assertions);
DeviceIndex device_count() noexcept;

class CUDAStream {
 public:
  explicit CUDAStream(DeviceIndex device) : device_(device < 0 ? current_device() : device) {
    void* stream = nullptr;
    keck::check(aoti_torch_get_current_cuda_stream(device_, &stream), "getCurrentCUDAStream");
    stream_ = static_cast<cudaStream_t>(stream);
  }
  operator cudaStream_t() const { return stream_; }
  cudaStream_t stream() const { return stream_; }
  DeviceIndex device_index() const { return device_; }
  Device device() const { return {DeviceType::CUDA, device_}; }

 private:
  cudaStream_t stream_;
  DeviceIndex device_;
};

inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1) { return CUDAStream(device); }

class OptionalCUDAGuard : private keck::DeviceScope {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(DeviceIndex index) : DeviceScope(index) {}
  explicit OptionalCUDAGuard(optional<Device> device) : DeviceScope(device) {
    TORCH_CHECK(!device || device->is_cuda(), "Expected a CUDA device, but got ", *device);
  }
  explicit OptionalCUDAGuard(Device device) : OptionalCUDAGuard(optional<Device>(device)) {}
};

class CUDAGuard : private OptionalCUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : OptionalCUDAGuard(index) {}
  explicit CUDAGuard(Device device) : OptionalCUDAGuard(device) {}
};

}  // namespace cuda

}  // namespace c10

namespace at {
namespace cuda {
using namespace c10::cuda;
// Exported by libtorch_cuda.
cudaDeviceProp* getCurrentDeviceProperties();
cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
int warp_size();
}  // namespace cuda
}  // namespace at

namespace torch {
namespace cuda {
using c10::cuda::device_count;
}
}  // namespace torch

#define C10_CUDA_CHECK(EXPR)                                                        \
  do {                                                                              \
    const cudaError_t __err = EXPR;                                                 \
    ::c10::cuda::c10_cuda_check_implementation(static_cast<int32_t>(__err), __FILE__, \
                                               __func__,                            \
                                               static_cast<uint32_t>(__LINE__), true); \
  } while (0)
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
