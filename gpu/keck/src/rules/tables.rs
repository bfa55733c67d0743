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

/// Modules of Python's standard library, one a line.
const STDLIB: &str = include_str!("stdlib_modules.txt");

/// Packages beside torch that do the work themselves or give a way out of the rules, and the judge's
/// own modules.
const PACKAGES_REFUSED: &str = "\
    apex bitsandbytes clock cpuinfo cuda cupy cutlass fences flash_attn flash_attn_2_cuda fsspec \
    inline jax jinja2 kernel liger_kernel module mpmath networkx numba numpy nvidia nvmath \
    onnxruntime pandas pip pkg_resources psutil ptrace pybind11 pycuda pynvml report requests sandbox \
    scipy setuptools sklearn sympy tensorflow tensorrt timed torchaudio torchgen torchvision \
    torchtriton typing_extensions watch wire xformers zygote";

/// What a candidate may use of modules other than torch and Triton: `module: names`. `*` is a module
/// that holds no other modules; `A*` are names that begin with a capital letter.
const MODULES: [(&str, &str); 20] = [
    ("__future__", "*"),
    ("abc", "ABC ABCMeta abstractmethod"),
    ("collections", "A* namedtuple deque defaultdict"),
    ("collections.abc", "A*"),
    ("contextlib", "contextmanager nullcontext suppress ExitStack"),
    ("copy", "copy deepcopy"),
    ("dataclasses", "dataclass field fields replace asdict astuple"),
    ("enum", "Enum IntEnum Flag IntFlag auto unique"),
    ("functools", "lru_cache cache cached_property partial wraps reduce"),
    ("itertools", "*"),
    ("json", "dumps loads"),
    ("logging", "getLogger basicConfig debug info warning error NOTSET DEBUG INFO WARNING ERROR"),
    ("math", "*"),
    ("numbers", "A*"),
    (
        "operator",
        "add sub mul truediv floordiv mod neg pos pow lt le eq ne ge gt and_ or_ not_ xor lshift \
         rshift index itemgetter contains",
    ),
    ("os", "environ getenv cpu_count"),
    ("textwrap", "dedent"),
    ("time", "*"),
    ("typing", "A* cast overload final"),
    ("warnings", "warn filterwarnings simplefilter catch_warnings"),
];

/// What a candidate may use of `triton`, and below it.
const TRITON: &str = "\
    Config __version__ autotune autotuner.Config cdiv heuristics jit language next_power_of_2 \
    language.math language.extra language.extra.cuda language.extra.libdevice \
    language.extra.cuda.libdevice language.core.constexpr language.core.dtype language.core.tensor \
    runtime.driver.active.get_active_torch_device runtime.driver.active.get_current_device \
    runtime.driver.active.get_current_target runtime.driver.active.utils.get_device_properties \
    runtime.jit.jit runtime.autotuner.Config constexpr_function testing.do_bench";

/// Parts of `triton.language` that are modules: only what [`TRITON`] names below them.
const TRITON_MODULES: &str = "\
    core extra math random semantic standard target_info builtins sys os";

/// Attributes of values in a kernel's body: what Triton's compiler knows of tensors, types,
/// constants and descriptors. Its interpreter would give more: arrays that compute by themselves.
pub const KERNEL_ATTRIBUTES: &str = "\
    T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min \
    atomic_or atomic_xchg atomic_xor block_shape broadcast_to cast cdiv ceil clamp cos cumprod cumsum \
    dot dtype element_ty erf exp exp2 expand_dims flip floor fma gather histogram is_bf16 is_block \
    is_floating is_fp16 is_fp32 is_fp64 is_fp8 is_int is_int1 is_int16 is_int32 is_int64 is_int8 is_ptr \
    item itemsize join load log log2 logical_and logical_or max min numel permute primitive_bitwidth \
    ravel reduce reshape rsqrt scalar scatter shape sigmoid sin softmax sort split sqrt sqrt_rn store \
    strides sum swizzle2d to topk trans type umulhi value view xor_sum";

/// Statements and expressions that Triton's compiler does not know.
pub const KERNEL_SYNTAX_REFUSED: &str = "\
    await class_definition delete_statement dictionary dictionary_comprehension exec_statement \
    generator_expression global_statement import_from_statement import_statement lambda \
    list_comprehension match_statement nonlocal_statement raise_statement set set_comprehension \
    try_statement with_statement yield";

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
    _disable_current_modes _dispatch_key _load_state_dict_pre_hooks _python_dispatch \
    _register_load_state_dict_pre_hook add_pre_run_hook attrgetter f_globals f_locals gi_frame handle \
    map_ methodcaller pre_run_hooks register_forward_hook register_forward_pre_hook \
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module \
    register_state_dict_post_hook register_state_dict_pre_hook tb_frame tb_next";

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
    __copy__ __deepcopy__ __getstate__ __init_subclass__ __reduce__ __reduce_ex__ __setattr__ _apply \
    _load_from_state_dict _save_to_state_dict eval load_state_dict state_dict train";

/// Whether a full name is that of a module which candidates may import.
pub fn is_whole_module(full: &str) -> bool {
    const LIBRARIES: &str = "\
        torch torch.nn torch.nn.functional torch.utils torch.utils.cpp_extension torch.cuda \
        torch.autograd triton triton.language triton.runtime triton.testing";
    listed(LIBRARIES, full) || MODULES.iter().any(|(module, _)| *module == full)
}

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

/// Whether a module or a name of it may not be imported, by its full name. Packages that nobody knows
/// may: they are not there, and a candidate may try.
pub fn is_import_refused(full: &str) -> bool {
    let head = full.split('.').next().unwrap_or(full);
    match head {
        "torch" => is_import_of_torch_refused(full),
        "triton" => !(full == "triton" || full == "triton.testing" || is_triton(full)),
        _ if MODULES.iter().any(|(module, _)| *module == full) => false,
        _ => is_path_refused(full),
    }
}

fn is_import_of_torch_refused(full: &str) -> bool {
    full.strip_prefix("torch.").is_some_and(|path| is_state_of_torch(path) || leaves_torch(path))
}

/// Whether a path below torch goes through a module of Python that torch happens to have imported.
pub fn leaves_torch(path: &str) -> bool {
    // Modules of Python share these names with modules and functions of torch.
    const TORCHS: [&str; 5] = ["signal", "types", "chunk", "select", "trace"];
    let parts = path.split('.').filter(|part| !TORCHS.contains(part));
    parts.into_iter().any(|part| STDLIB.lines().any(|module| module == part) || part == "torch")
}

fn is_triton(full: &str) -> bool {
    let Some(path) = full.strip_prefix("triton.") else { return false };
    if listed(TRITON, path) {
        return true;
    }
    let below = ["language.math.", "language.extra.libdevice.", "language.extra.cuda.libdevice."];
    if let Some(rest) = below.iter().find_map(|prefix| path.strip_prefix(prefix)) {
        return !rest.contains('.') && !rest.starts_with('_');
    }
    path.strip_prefix("language.").is_some_and(|rest| {
        let name = rest.split('.').next().unwrap_or(rest);
        let constant = rest == name || listed(KERNEL_ATTRIBUTES, &rest[name.len() + 1..]);
        constant && !listed(TRITON_MODULES, name) && !name.starts_with('_')
    })
}

/// Whether a full name that does not begin with torch may not be mentioned. A module itself may not
/// be used as a value: what it is called later would hide what it is.
pub fn is_path_refused(full: &str) -> bool {
    let head = full.split('.').next().unwrap_or(full);
    if head == "triton" {
        return !is_triton(full);
    }
    let known = MODULES.iter().filter_map(|(module, names)| {
        let rest = full.strip_prefix(module)?;
        Some((rest.strip_prefix('.')?, *names))
    });
    for (rest, names) in known {
        let (name, deeper) = rest.split_once('.').unwrap_or((rest, ""));
        let capital = name.starts_with(|c: char| c.is_ascii_uppercase());
        let public = !name.starts_with('_');
        let fine = names == "*" || listed(names, name) || capital && listed(names, "A*");
        let plain = deeper.is_empty() || head == "os" && name == "environ" || capital;
        if public && fine && plain {
            return false;
        }
    }
    MODULES.iter().any(|(module, _)| full == *module || full.starts_with(&format!("{module}.")))
        || STDLIB.lines().any(|module| module == head)
        || listed(PACKAGES_REFUSED, head)
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
        assert!(is_import_refused("dataclasses.sys") && is_import_refused("watch"));
        assert!(is_import_refused("triton.runtime.interpreter.np"));
        assert!(!is_import_refused("dataclasses.dataclass") && !is_import_refused("nobody_knows"));
    }

    #[test]
    fn paths_that_lead_out() {
        for path in [
            "logging.sys.modules",
            "typing.sys",
            "collections._sys",
            "math",
            "triton.knobs.sysconfig.sys",
            "triton.language.core.os",
            "functools.lru_cache.x",
            "sys.modules",
            "numpy.fabs",
        ] {
            assert!(is_path_refused(path), "{path}");
        }
        for path in [
            "math.ceil",
            "typing.Dict",
            "typing.List.x",
            "os.environ.setdefault",
            "triton.jit",
            "triton.language.load",
            "triton.language.float32",
            "triton.language.extra.libdevice.tanh",
            "triton.language.math.exp",
            "nobody_knows.fast",
        ] {
            assert!(!is_path_refused(path), "{path}");
        }
        assert!(leaves_torch("sys.modules") && leaves_torch("utils.cpp_extension.os"));
        assert!(!leaves_torch("nn.functional.relu") && !leaves_torch("signal.windows"));
    }
}
