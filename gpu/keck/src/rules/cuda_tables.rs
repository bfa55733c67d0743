//! The lists of the rules for C++ and CUDA text: words between spaces.

/// What may follow `at::`, `torch::` or `c10::`: types, allocation, constants, plumbing.
pub const TORCH_ALLOWED: &str = "\
    ArrayRef BFloat16 Device DeviceGuard DeviceIndex DeviceType DefaultPtrTraits Dtype Half \
    IntArrayRef Layout MemoryFormat OptionalDeviceGuard PackedTensorAccessor32 \
    PackedTensorAccessor64 PtrTraits RestrictPtrTraits Scalar ScalarType Tensor TensorAccessor \
    TensorArg TensorList TensorOptions acc_type complex cuda device device_of dtype empty \
    empty_like empty_strided full full_like infer_size isFloatingType isIntegralType layout \
    nullopt ones ones_like opmath_type optional requires_grad string toString typeMetaToScalarType \
    wrap_pybind_function zeros zeros_like OptionalTensorRef checkAllContiguous checkAllSameGPU \
    checkSameGPU checkContiguous CheckedFrom SmallVector string_view Error intrusive_ptr";

/// What may follow `at::cuda::` or `c10::cuda::`.
pub const CUDA_ALLOWED: &str = "\
    CUDAGuard CUDAStream CUDAStreamGuard OptionalCUDAGuard current_device detail \
    getCurrentCUDAStream getCurrentDeviceProperties getDefaultCUDAStream getDeviceProperties \
    blas_none warp_size";

/// Headers by the start of their name.
pub const INCLUDES: &str = "\
    ATen/ATen.h ATen/AccumulateType.h ATen/Dispatch ATen/OpMathType.h ATen/Tensor ATen/core/Tensor \
    ATen/cuda/CUDAContext ATen/cuda/CUDADataType ATen/cuda/Exceptions.h algorithm array assert.h \
    c10/core/Scalar c10/cuda/ c10/macros c10/util/ cassert cfloat climits cmath cooperative_groups \
    cstddef cstdint cstdio cstdlib cstring cub/block/ cub/cub.cuh cub/thread/ cub/util cub/warp/ \
    cuda.h cuda/ cuda_bf16 cuda_fp16 cuda_fp8 cuda_pipeline cuda_runtime curand_kernel.h \
    device_launch_parameters.h float.h functional iostream limits math.h math_constants.h memory \
    mma.h numeric optional pybind11/ sm_ stdexcept stdint.h stdio.h string torch/ tuple \
    type_traits vector";
/// Further headers.
pub const MORE_INCLUDES: &str = "\
    utility sstream stdlib.h string.h initializer_list limits.h";

/// Identifiers by the start of their name: libraries that do the work, other processes, threads,
/// streams and settings of the device.
pub const STARTS_REFUSED: &str = "\
    cublas cudnn cufft curandGenerate cusolver cusparse cutensor cudaGraph cudaStreamCreate \
    cudaStreamBegin cudaStreamSet cudaStreamUpdate cudaDeviceReset cudaDeviceSetLimit \
    cudaDeviceSetCacheConfig cudaCtxResetPersisting cudaLaunchHostFunc cudaStreamAddCallback \
    cudaEvent cudaIpc cudaHostRegister cudaProfiler cuStream cuCtx cuGraph cuModule cuLaunchHost \
    nvrtc pthread_ PyRun_ PyImport_ PyObject_ PyEval_ PyInit_ dlsym aoti_ torch_call_dispatcher \
    torch_library_impl torch_set_ THPVariable THPDtype AtenTensor keck KECK_";

/// Parts of linker names in strings: `asm("name")` after a declaration makes it another function.
pub const SYMBOLS_REFUSED: [&str; 6] =
    ["_ZN2at", "_ZN3c10", "_ZN5torch", "aoti_torch", "torch_call_dispatcher", "THPVariable"];

/// Whole identifiers.
pub const NAMES_REFUSED: &str = "\
    Dispatcher ExcludeDispatchKeyGuard IncludeDispatchKeyGuard LocalDispatchKeySet OperatorHandle \
    accessPolicyWindow async clone3 dlopen execl execlp execv execve execvp findSchemaOrThrow \
    fopen fork freopen fstream getenv ifstream jthread kill mmap module_ mprotect ofstream popen \
    posix_spawn promise ptrace putenv remove_all setenv socket syscall system thread thrust unlink \
    vfork cutlass cute redispatch";

/// Methods of a C++ tensor that compute; called as `.name(` or `->name(`.
pub const METHODS_REFUSED: &str = "\
    abs add add_ addmm argmax argmin baddbmm bmm clamp clamp_ clamp_max clamp_min clamp_min_ copy_ \
    cos cpu cumsum div div_ dot einsum erf exp exp_ gather gelu index_add_ index_select item log \
    log_ log_softmax masked_fill masked_fill_ matmul mean mm mul mul_ mv neg norm pow prod relu \
    relu_ rsqrt scatter_add_ sigmoid sigmoid_ sin softmax sqrt sqrt_ std sub sub_ sum tanh tanh_ \
    topk tril triu var where attr typed call callBoxed cumprod logsumexp square";
