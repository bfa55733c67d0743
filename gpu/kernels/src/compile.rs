//! CUDA sources to machine code, by NVRTC in this process. Works on machines without a GPU.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

use crate::error::{Error, Result};

/// What every source begins with.
const COMMON: &str = concat!(
    include_str!("cuda/types.cuh"),
    include_str!("cuda/instructions.cuh"),
    include_str!("cuda/common.cuh"),
);

/// One source file and the kernels in it.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name in `cuda/`.
    pub name: &'static str,
    text: &'static str,
    /// Its kernels.
    pub kernels: &'static [&'static str],
}

/// All sources.
pub const SOURCES: [Source; 6] = [
    Source {
        name: "elementwise.cu",
        text: include_str!("cuda/elementwise.cu"),
        kernels: &["rms_norm", "swiglu", "embed"],
    },
    Source {
        name: "rope.cu",
        text: include_str!("cuda/rope.cu"),
        kernels: &["rope_and_cache", "copy_block"],
    },
    Source {
        name: "attention.cu",
        text: include_str!("cuda/attention.cu"),
        kernels: &["attend_64", "attend_128", "combine"],
    },
    Source {
        name: "gemv.cu",
        text: include_str!("cuda/gemv.cu"),
        kernels: &["gemv", "gemv_swiglu"],
    },
    Source {
        name: "sample.cu",
        text: include_str!("cuda/sample.cu"),
        kernels: &["sample_bf16", "sample_f32"],
    },
    Source {
        name: "training.cu",
        text: include_str!("cuda/training.cu"),
        kernels: &["swiglu_back", "rotate", "rotate_back", "score", "score_back", "adamw"],
    },
];

/// NVRTC's name for a compute capability.
pub fn arch(major: i32, minor: i32) -> String {
    // Only Hopper's own instructions are worth giving up portability for.
    let own = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

/// Compiles one source for `arch` (such as `sm_90a`) to a cubin.
///
/// # Errors
/// NVRTC is missing, or the source does not compile: with its log.
pub fn compile(source: &Source, arch: &str) -> Result<Vec<u8>> {
    open_library()?;
    let wrong = |log: String| Error::Compile { source_file: source.name, arch: arch.into(), log };
    let text = CString::new(format!("{COMMON}\n{}", source.text))
        .map_err(|_| wrong("the source holds a zero byte".into()))?;
    let name = CString::new(source.name).unwrap_or_default();
    let program = result::create_program(&text, Some(&name)).map_err(|e| wrong(e.to_string()))?;
    let options = [format!("--gpu-architecture={arch}"), "--std=c++17".into()];
    // SAFETY: the program was made above and is destroyed once, below.
    unsafe {
        let built = result::compile_program(program, &options).and_then(|()| cubin(program));
        let built = built.map_err(|e| match result::get_program_log(program) {
            Ok(log) => wrong(text_of(&log)),
            Err(_) => wrong(e.to_string()),
        });
        let _ = result::destroy_program(program);
        built
    }
}

/// # Safety
/// `program` is compiled and not destroyed.
unsafe fn cubin(program: sys::nvrtcProgram) -> std::result::Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the buffer has the size that NVRTC asks for.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
        let mut code = vec![0_u8; size];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
        Ok(code)
    }
}

fn text_of(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    text.map(|t| t.into_owned()).unwrap_or_default()
}

/// Opens NVRTC: in the folder where pip puts it beside libtorch, or by the loader's rules.
fn open_library() -> Result<()> {
    const NAME: &str = "libnvrtc.so.13";
    // SAFETY: opening the vendor's libraries runs their initialisers and nothing of ours.
    let opened = |path: &Path| unsafe {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        !libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL).is_null()
    };
    for folder in folders() {
        // NVRTC opens its builtins by name alone, which works once they are open.
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let builtins = |n: &OsStr| n.as_bytes().starts_with(b"libnvrtc-builtins.so");
        files.filter(|f| builtins(&f.file_name())).for_each(|f| {
            opened(&f.path());
        });
        if opened(&folder.join(NAME)) {
            return Ok(());
        }
    }
    if opened(Path::new(NAME)) {
        return Ok(());
    }
    let fix = "install nvidia-cuda-nvrtc 13 beside torch or set LD_LIBRARY_PATH";
    Err(Error::Library { library: NAME, fix })
}

/// Where CUDA's libraries may lie: where this process has one already, and beside libtorch.
fn folders() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let runtime = maps.lines().filter_map(|line| line.split_whitespace().nth(5).map(Path::new));
    let runtime = runtime.filter(|p| p.ends_with("libcudart.so.13")).filter_map(Path::parent);
    let mut folders: Vec<PathBuf> = runtime.take(1).map(Path::to_owned).collect();
    let torch = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&torch).map(|p| p.join("../../nvidia/cu13/lib")));
    folders
}
