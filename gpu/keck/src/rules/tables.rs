//! The lists of the static rules: words between spaces.

/// Every method of `torch.Tensor` in torch 2.11, one a line.
const TENSOR_METHODS: &str = include_str!("tensor_methods.txt");

/// Tensor methods that describe, view, allocate or convert; Python containers share some names.
const PLAIN_METHODS: &str = "\
    as_strided bfloat16 bool byte char chunk clone contiguous cuda data_ptr detach dim dim_order \
    double element_size expand expand_as fill_ flatten float get_device half int is_complex \
    is_contiguous is_floating_point is_signed is_shared long mT movedim moveaxis narrow ndimension \
    nelement new_empty new_empty_strided new_full new_ones new_zeros numel permute requires_grad_ \
    reshape reshape_as select short size split split_with_sizes squeeze storage_offset stride \
    swapaxes swapdims t to transpose type type_as unbind unflatten unfold unsqueeze values view \
    view_as zero_ rename register_hook";

/// Methods that return a tensor when their receiver is one.
pub const GIVES_TENSOR: &str = "\
    bfloat16 clone contiguous detach expand expand_as flatten float half new_empty new_full \
    new_ones new_zeros permute reshape squeeze t to transpose unsqueeze view view_as";

/// What forward may mention of torch: allocation, views, types, devices and questions.
const PLAIN_TORCH: &str = "\
    Size Tensor __version__ as_strided autograd.Function autograd.no_grad broadcast_shapes \
    channels_last channels_last_3d chunk contiguous_format cuda.current_device cuda.current_stream \
    cuda.device cuda.device_count cuda.device_of cuda.get_device_capability cuda.get_device_name \
    cuda.get_device_properties cuda.is_available cuda.set_device cuda.synchronize device dtype \
    empty empty_like empty_strided enable_grad finfo flatten full full_like get_default_dtype \
    iinfo inference_mode is_floating_point is_grad_enabled is_tensor movedim narrow nn.Module \
    nn.ModuleDict nn.ModuleList nn.Parameter no_grad ones ones_like permute preserve_format \
    promote_types reshape result_type set_grad_enabled split squeeze strided t transpose unbind \
    unsqueeze version.cuda zeros";

const DTYPES: &str = "\
    bfloat16 bool complex64 double float float16 float32 float64 float8_e4m3fn float8_e5m2 half \
    int int16 int32 int64 int8 long short uint16 uint32 uint64 uint8 zeros_like \
    utils.cpp_extension.load_inline";

/// Parts of torch that change or read the process's state: forbidden in the whole file.
const STATE_OF_TORCH: &str = "\
    backends compile compiler cuda.CUDAGraph cuda.ExternalStream cuda.MemPool cuda.Stream \
    cuda.caching_allocator_alloc cuda.cudart cuda.graph cuda.graphs cuda.jiterator \
    cuda.make_graphed_callables cuda.memory cuda.nccl cuda.set_stream cuda.stream cuda.streams \
    cuda.tunable distributed export fx hub jit library load multiprocessing ops overrides package \
    random save set_default_device set_default_dtype set_float32_matmul_precision testing \
    use_deterministic_algorithms xpu";

/// Modules that give a way out of the rules or do the work themselves.
const IMPORTS_REFUSED: &str = "\
    __main__ _thread apex ast asyncio atexit bitsandbytes builtins cProfile clock code codeop \
    concurrent cpuinfo ctypes cuda cupy cutlass dis fcntl flash_attn gc glob http importlib inline \
    inspect io jax kernel linecache liger_kernel marshal mmap module multiprocessing numba numpy \
    nvmath onnxruntime pandas pathlib pdb pickle pkgutil profile psutil ptrace pycuda pynvml \
    report requests resource runpy sandbox scipy select shutil signal site sklearn socket ssl \
    statistics subprocess sys tempfile tensorflow tensorrt threading timeit tools torchaudio \
    torchvision traceback types urllib watch weakref wire xformers zygote";

/// Built-in functions whose mere mention is refused.
pub const NAMES_REFUSED: &str = "\
    __builtins__ __import__ __loader__ delattr eval exec getattr globals setattr vars";

/// Built-in functions that may not be called; as names of parameters they are common.
pub const CALLS_REFUSED: &str = "\
    breakpoint compile dir id input locals memoryview open";

/// Attributes that reach frames, private tables and modules by the back door.
pub const ATTRIBUTES_REFUSED: &str = "\
    _backward_hooks _base _buffers _cdata _forward_hooks _forward_pre_hooks _load_from_state_dict \
    _modules _parameters _version ag_frame apply_ as_subclass cr_frame f_back f_builtins f_code \
    f_globals f_locals gi_frame map_ register_forward_hook register_forward_pre_hook \
    register_load_state_dict_post_hook register_module register_state_dict_post_hook tb_frame \
    tb_next";

/// Special names that may be mentioned as attributes.
pub const DUNDERS_ALLOWED: &str = "\
    __class__ __doc__ __init__ __len__ __name__ __post_init__ __qualname__ __version__";

/// Ways from a module to its parts, by which forward would reach torch's own modules.
pub const MODULE_WALKS: &str = "\
    children get_submodule modules named_children named_modules parametrizations \
    register_parametrization";

/// Methods that would change how the judge talks to a model or a tensor.
pub const METHODS_REFUSED: &str = "\
    __call__ __class_getitem__ __del__ __delattr__ __getattr__ __getattribute__ __getitem__ \
    __getstate__ __init_subclass__ __reduce__ __setattr__ _apply eval load_state_dict state_dict \
    train";

/// Whether a table, words between spaces, holds a word.
pub fn listed(table: &str, word: &str) -> bool {
    table.split_whitespace().any(|known| known == word)
}

/// Whether a name is one of a tensor's methods that compute.
pub fn computes(method: &str) -> bool {
    let known = listed(TENSOR_METHODS, method);
    known && !listed(PLAIN_METHODS, method)
}

/// Whether forward may mention `torch.PATH`.
pub fn is_plain_torch(path: &str) -> bool {
    listed(PLAIN_TORCH, path) || listed(DTYPES, path)
}

/// Whether the file may not mention `torch.PATH` anywhere.
pub fn is_state_of_torch(path: &str) -> bool {
    let private = path.split('.').any(|part| part.starts_with('_') && part != "__version__");
    let utils = path == "utils"
        || path.starts_with("utils.")
            && !path.starts_with("utils.cpp_extension")
            && !path.starts_with("utils.benchmark");
    private
        || utils
        || STATE_OF_TORCH
            .split_whitespace()
            .any(|s| path.strip_prefix(s).is_some_and(|r| r.is_empty() || r.starts_with('.')))
}

/// Whether a module may not be imported, by its full name.
pub fn is_import_refused(module: &str) -> bool {
    let head = module.split('.').next().unwrap_or(module);
    listed(IMPORTS_REFUSED, head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_names() {
        assert!(computes("softmax") && computes("cpu") && computes("copy_"));
        assert!(!computes("contiguous") && !computes("append"));
        assert!(is_plain_torch("empty_like") && !is_plain_torch("nn.functional.relu"));
        assert!(is_state_of_torch("backends.cuda.matmul") && is_state_of_torch("_C"));
        assert!(!is_state_of_torch("jitter") && !is_state_of_torch("nn.Linear"));
        assert!(is_import_refused("concurrent.futures") && !is_import_refused("math"));
    }
}
