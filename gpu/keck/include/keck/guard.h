// The current device, set while a guard lives. Stands in for c10/core/DeviceGuard.h.
#pragma once

#include "keck/native.h"

namespace c10 {
namespace cuda {
// Exported by libc10_cuda.
DeviceIndex current_device();
}  // namespace cuda
}  // namespace c10

namespace keck {

// On a CPU there is nothing to set.
class DeviceScope {
 public:
  DeviceScope() = default;
  explicit DeviceScope(int32_t index) { enter(index); }
  explicit DeviceScope(std::optional<c10::Device> device) {
    if (!device || !device->is_cuda()) return;
    enter(device->has_index() ? device->index() : c10::cuda::current_device());
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (guard_) aoti_torch_delete_cuda_guard(guard_);
  }

 private:
  void enter(int32_t index) {
    check(aoti_torch_create_cuda_guard(index, &guard_), "a device guard");
  }
  CUDAGuardOpaque* guard_ = nullptr;
};

}  // namespace keck

namespace c10 {
class OptionalDeviceGuard : private keck::DeviceScope {
 public:
  OptionalDeviceGuard() = default;
  explicit OptionalDeviceGuard(optional<Device> device) : DeviceScope(device) {}
  explicit OptionalDeviceGuard(Device device) : DeviceScope(optional<Device>(device)) {}
};
class DeviceGuard : private keck::DeviceScope {
 public:
  explicit DeviceGuard(Device device) : DeviceScope(optional<Device>(device)) {}
};
}  // namespace c10
